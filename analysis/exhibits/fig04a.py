"""Fig 4a: the longest response of each step, of plain batches and of short and long rounds of tail batching.

The paper's numbers of this figure are not at hand; its text says that four short rounds go with a long one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Value
from rollpacker.analysis.rounds import draw_rounds, gather_rounds, rounds_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B")
SYSTEMS = ("verl", "tail")

SHORT_PER_LONG = 4.0
"""Section 3: with a factor of 1.25 for prompts, each short round defers a quarter of a batch."""


def gather(runs: Runs) -> Numbers:
    """Of tail batching alone: nothing else changes, so this is what it does to the rounds."""
    points = gather_rounds(runs, models=MODELS, systems=SYSTEMS, column="response_length_max_tokens", unit="tokens")
    return Numbers(points=points, claims=[_claim(runs, model) for model in MODELS], missing=runs.missing)


def _claim(runs: Runs, model: str) -> Claim:
    ours = Place(panel=model, x="short rounds per long round", unit="rounds").ours(
        Value(run, len(rounds_of(run, "short")) / num_long)
        for run in runs.of(model=model, system="tail", task="mix")
        if (num_long := len(rounds_of(run, "long")))
    )
    return Claim(text=f"{model}: short rounds per long round", paper=SHORT_PER_LONG, ours=ours, unit="rounds")


def draw(numbers: Numbers) -> Figure:
    """A panel per model, a mark per round."""
    return draw_rounds(numbers, ylabel="longest response (tokens)")


EXHIBIT = Exhibit(
    name="fig04a",
    title="The longest response of each round, plain and under tail batching (Fig 4a)",
    experiments=("table2",),
    gather=gather,
    draw=draw,
)
