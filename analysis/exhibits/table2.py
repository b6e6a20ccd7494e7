"""Table 2: what each technique adds over plain batches, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from analysis.exhibit import Exhibit
from analysis.numbers import Claim, Numbers, Place, Point, comparing, paper_rows, speedups
from analysis.plots import compare_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from analysis.runs import Runs

MODELS = {"Qwen2.5-7B/8k": "Qwen2.5-7B", "Qwen2.5-14B/16k": "Qwen2.5-14B"}
LADDER = {
    "veRL Baseline": ("verl", "veRL"),
    "+ Tail Batching": ("tail", "+ tail"),
    "+ Reward": ("tail-reward", "+ reward"),
    "+ Parallelism": ("tail-reward-planner", "+ planner"),
    "+ Trainer": ("rollpacker", "+ stream"),
}
"""The paper's rows: the system that has so much, and what the figure calls it."""


def gather(runs: Runs) -> Numbers:
    """Speedups over verl."""
    points: list[Point | None] = []
    claims: list[Claim] = []
    for row in paper_rows("table02"):
        model, (system, label) = MODELS[row.series], LADDER[row.x]
        place = Place(panel=model, x=label, unit="x")
        plain = runs.of(model=model, system="verl", task="mix")
        ours = place.ours(speedups(plain, runs.of(model=model, system=system, task="mix")))
        points += [place.paper(row.y), ours]
        if system != "verl":
            rungs = " ".join(name for _, name in LADDER.values()).partition(label)[0] + label
            claims.append(Claim(text=f"{model}: {rungs}, over veRL", paper=row.y, ours=ours, unit="x", neutral=1.0))
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """One panel per model, the paper's bars beside ours."""
    return compare_bars(numbers, ylabel="speedup over veRL", number="{:.2f}")


EXHIBIT = Exhibit(
    name="table2",
    title="What each technique adds over plain batches (Table 2)",
    experiments=("table2",),
    gather=gather,
    draw=draw,
)
