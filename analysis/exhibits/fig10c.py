"""Fig 10c: the stages of short and long rounds, in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Numbers, Place, Point, Value, comparing, paper_rows
from rollpacker.analysis.plots import compare_bars

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rollpacker.analysis.runs import Runs

LONG_STEP_S = {"7B": 129.0, "14B": 302.0}
"""The printed step time of a long round, of which the figure gives shares."""

STAGES = {"Sync.": "weight_sync", "Rollout": "rollout", "Reward": "exposed_reward", "Training": "train"}

SYSTEM = "tail-reward-planner"
"""The figure is of RollPacker, but its stages add up to the step as if no training overlapped the rollout."""


def gather(runs: Runs) -> Numbers:
    """Mean seconds of each stage over the rounds of a kind."""
    points: list[Point | None] = []
    claims: list[Claim] = []
    for row in paper_rows("fig10c"):
        name, _, rest = row.series.partition(" (")
        stage, kind, model = STAGES[name], rest.split()[0], f"Qwen2.5-{row.x}"
        seconds = row.y / 100 * LONG_STEP_S[row.x]
        place = Place(panel=f"{model}, {kind} rounds", x=stage.replace("_", " "), unit="s")
        ours = place.ours(
            Value(run, float(rounds[f"{stage}_time_s"].mean()))
            for run in runs.of(model=model, system=SYSTEM, task="mix")
            if len(rounds := run.steps[run.steps["round_kind"] == kind])
        )
        points += [place.paper(seconds), ours]
        claims.append(Claim(text=f"{place.panel}: {place.x}", paper=seconds, ours=ours, unit="s"))
    return Numbers(points=comparing(points), claims=claims, missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """A panel per model and kind of round, the paper's bars beside ours."""
    return compare_bars(numbers, ylabel="seconds", num_columns=2)


EXHIBIT = Exhibit(
    name="fig10c",
    title="Stages of short and long rounds (Fig 10c)",
    experiments=("table2",),
    gather=gather,
    draw=draw,
)
