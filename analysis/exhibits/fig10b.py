"""Fig 10b: the rollout time of each step, veRL against RollPacker end to end.

The paper's numbers of this figure are not at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import ALL_SETUPS, Exhibit
from rollpacker.analysis.exhibits.fig10a import MODELS, SYSTEMS
from rollpacker.analysis.numbers import Numbers
from rollpacker.analysis.rounds import draw_rounds, gather_rounds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs


def gather(runs: Runs) -> Numbers:
    """RollPacker's rollouts hold their rewards, and late in them the trainer has half of the GPUs."""
    points = gather_rounds(runs, models=runs.models(*MODELS), systems=SYSTEMS, column="rollout_time_s", unit="s")
    return Numbers(points=points, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """A panel per model, a mark per round."""
    return draw_rounds(numbers, ylabel="rollout time (s)")


EXHIBIT = Exhibit(
    name="fig10b",
    title="The rollout time of each step, end to end (Fig 10b)",
    experiments=("e2e_performance",),
    gather=gather,
    draw=draw,
    setups=ALL_SETUPS,
)
