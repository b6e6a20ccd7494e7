"""Fig 7a: run times of sandboxed programs, as a share of the programs that took no longer."""

from __future__ import annotations

from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing, paper_rows
from rollpacker.analysis.plots import compare_curves
from rollpacker.analysis.runs import Runs

LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.8, 0.85, 0.9, 0.925, 0.945, 0.96, 0.98, 0.99)
PANEL = "sandboxed programs"
_EVERY = 4
"""Of the paper's points one in so many is drawn."""


def gather(runs: Runs) -> Numbers:
    """Quantiles of the reward times of code under plain batches, whose limit is fixed.

    Modelled times are drawn from this very figure, so there they must agree.
    """
    of_paper = paper_rows("fig07a")[::_EVERY]
    points: list[Point | None] = [
        Place(panel=PANEL, x=row.y, unit="s", series="code").paper(float(row.x)) for row in of_paper
    ]
    plain = runs.of(model="Qwen2.5-14B", system="verl", task="code")
    for level in LEVELS:
        place = Place(panel=PANEL, x=100 * level, unit="s", series="code")
        points.append(place.ours(Value(run, run.quantile("reward_time_s", level)) for run in plain))
    return Numbers(points=comparing(points), missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """One panel, times on a logarithmic axis."""
    return compare_curves(numbers, xlabel="run time of a program (s)", ylabel="programs that took no longer (%)")


EXHIBIT = Exhibit(
    name="fig07a",
    title="Run times of sandboxed programs (Fig 7a)",
    experiments=("table1",),
    gather=gather,
    draw=draw,
)
