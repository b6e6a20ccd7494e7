"""Fig 10a: the longest response of each step, veRL against RollPacker end to end.

The paper's numbers of this figure are not at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.numbers import Numbers
from rollpacker.analysis.rounds import draw_rounds, gather_rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs

MODELS = ("Qwen2.5-7B", "Qwen2.5-14B")
SYSTEMS = ("verl", "rollpacker")


def gather(runs: Runs) -> Numbers:
    """Of the responses that were trained: an aborted one may have been longer."""
    points = gather_rounds(
        runs, models=runs.models(*MODELS), systems=SYSTEMS, column="response_length_max_tokens", unit="tokens"
    )
    return Numbers(points=points, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """A panel per model, a mark per round."""
    return draw_rounds(numbers, ylabel="longest response (tokens)")


EXHIBIT = Exhibit(
    name="fig10a",
    title="The longest response of each step, end to end (Fig 10a)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
