"""Fig 6: preemptions and rollout time of short and long rounds, by the engines' tensor parallelism."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.exhibit import Exhibit
from analysis.numbers import Claim, Numbers, Place, Point, Value, comparing, paper_rows
from analysis.plots import compare_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.runs import Runs

PANELS = {
    "fig06a": ("preemptions per round", "num_preemptions", "preemptions"),
    "fig06b": ("rollout time of a round (s)", "rollout_time_s", "s"),
}


def gather(runs: Runs) -> Numbers:
    """Means over the rounds of a kind: short ones want a larger degree, says the paper, and long ones a smaller."""
    points: list[Point | None] = []
    claims: list[Claim] = []
    for name, (panel, column, unit) in PANELS.items():
        for row in paper_rows(name):
            kind, degree = row.series.split()[0].lower(), int(row.x.removeprefix("TP="))
            place = Place(panel=panel, x=f"{kind}\nTP {degree}", unit=unit)
            ours = place.ours(
                Value(run, float(rounds[column].mean()))
                for run in runs.of(model="Qwen3-8B", system="tail-reward", tensor_parallel=degree)
                if len(rounds := run.steps[run.steps["round_kind"] == kind])
            )
            points += [place.paper(row.y), ours]
            claims.append(Claim(text=f"TP {degree}, {kind} rounds: {panel}", paper=row.y, ours=ours, unit=unit))
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """Preemptions left, times right."""
    return compare_bars(numbers, ylabel="", number="{:,.0f}")


EXHIBIT = Exhibit(
    name="fig06",
    title="Preemptions and rollout time by tensor parallelism, Qwen3-8B on 8 GPUs (Fig 6)",
    experiments=("fig06", "fig06-tp2"),
    gather=gather,
    draw=draw,
)
