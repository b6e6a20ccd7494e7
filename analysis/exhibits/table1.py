"""Table 1: where the time of a plain synchronous step goes, one task at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, paper_rows
from rollpacker.analysis.plots import compare_bars
from rollpacker.analysis.runs import Run, Runs

TASKS = {"Math": "math", "Code": "code", "LLM-as-a-Judge": "judge"}
STAGES = {
    "Rollout": ("rollout_time_s",),
    "Reward": ("exposed_reward_time_s",),
    "Training": ("train_time_s", "weight_sync_time_s"),
}
"""The paper's stages add up to the step, so the weight sync is counted with training."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Shares of the step, ratios of sums over the steps."""
    for row in paper_rows("table01"):
        task, stage = TASKS[row.series], row.x
        place = Place(panel=task, x=stage.lower(), unit="%")
        plain = runs.of(model="Qwen2.5-14B", system="verl", task=task)
        ours = place.ours(Value(run, _share(run, stage)) for run in plain)
        yield place.paper(row.y)
        yield ours
        text = f"{task}: share of a plain step that {stage.lower()} takes"
        yield Claim(text=text, paper=row.y, ours=ours, unit="%")


def _share(run: Run, stage: str) -> float:
    return float(100 * sum(run.steps[column].sum() for column in STAGES[stage]) / run.steps["step_time_s"].sum())


EXHIBIT = Exhibit(
    name="table1",
    title="Where the time of a plain synchronous step goes, Qwen2.5-14B (Table 1)",
    experiments=("table1",),
    gather=gather,
    draw=partial(compare_bars, ylabel="share of the step (%)", number="{:.0f}"),
)
