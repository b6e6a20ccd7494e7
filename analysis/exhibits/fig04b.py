"""Fig 4b: the rollout time of each step, of plain batches and of short and long rounds of tail batching.

The paper's numbers of this figure are not at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.fig04a import MODELS, SYSTEMS
from rollpacker.analysis.numbers import Numbers
from rollpacker.analysis.rounds import draw_rounds, gather_rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs


def gather(runs: Runs) -> Numbers:
    """Of tail batching alone, as in Fig 4a; the last rewards of a batch come after the rollout and are not in it."""
    points = gather_rounds(runs, models=MODELS, systems=SYSTEMS, column="rollout_time_s", unit="s")
    return Numbers(points=points, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """A panel per model, a mark per round."""
    return draw_rounds(numbers, ylabel="rollout time (s)")


EXHIBIT = Exhibit(
    name="fig04b",
    title="The rollout time of each round, plain and under tail batching (Fig 4b)",
    experiments=("table2",),
    gather=gather,
    draw=draw,
)
