"""Ours: the bubble ratio and the wasted tokens of each system and model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Place, Point, Value
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Runs
from rollpacker.analysis.style import PAPER_LABELS

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B", "Qwen2.5-32B")
SYSTEMS = ("verl", "rlhfuse", "rollpacker")


def gather(runs: Runs) -> Iterator[Point | None]:
    """Over all steps: the bubble ratio, and the share of generated tokens that were wasted."""
    for title, share in (("bubble ratio", "bubble_percent"), ("tokens wasted", "wasted_percent")):
        for model in runs.models(*MODELS):
            for system in SYSTEMS:
                found = runs.of(model=model, system=system, task="mix")
                place = Place(panel=f"{model}\n{title}", x=PAPER_LABELS[system], unit="%")
                yield place.ours(Value(run, getattr(run, share)) for run in found)


EXHIBIT = Exhibit(
    name="bubbles",
    title="Bubble ratio and wasted tokens of each system (ours)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=partial(compare_bars, ylabel="share (%)", number="{:.0f}"),
    setups=ALL_SETUPS,
)
