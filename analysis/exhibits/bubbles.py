"""Ours: the bubble ratio and the wasted tokens of each system and model."""

from __future__ import annotations

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Value, comparing
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import PAPER_LABELS

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B")
SYSTEMS = ("verl", "rlhfuse", "rollpacker")


def gather(runs: Runs) -> Numbers:
    """Over all steps: the bubble ratio, and the share of generated tokens that were wasted."""
    points = [
        Place(panel=f"{model}\n{title}", x=PAPER_LABELS[system], unit="%").ours(
            Value(run, getattr(run, share)) for run in runs.of(model=model, system=system, task="mix")
        )
        for title, share in (("bubble ratio", "bubble_percent"), ("tokens wasted", "wasted_percent"))
        for model in runs.models(*MODELS)
        for system in SYSTEMS
    ]
    return Numbers(points=comparing(points), missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """A panel per model; bubble ratios above, waste below."""
    return compare_bars(numbers, ylabel="share (%)", number="{:.0f}")


EXHIBIT = Exhibit(
    name="bubbles",
    title="Bubble ratio and wasted tokens of each system (ours)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
