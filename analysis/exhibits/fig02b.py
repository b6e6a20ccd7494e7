"""Fig 2b: how unbalanced a rollout of plain batches is: a few long responses keep all GPUs waiting.

The paper shows the SM utilisation of four GPUs over one rollout of 270.9 s and does not say of which task; modelled
runs have no such utilisation, so the paper's stands alone. What can be compared is when GPUs run out of work: the
paper's at 90.2, 161.4, 161.4 and 270.9 s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from statistics import fmean

import pandas as pd

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Claim, Place, Point, Value, comparing, paper_rows
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

TASKS = ("math", "code", "judge")

RUNNING, RATIO, IDLE = "requests running (%)", "longest over median", "idle GPUs (%)"
AT_WORK, UTILISATION = "GPUs with requests (%)", "SM utilisation, paper (%)"
XLABELS = dict.fromkeys((RUNNING, AT_WORK, UTILISATION), "time of the rollout (%)")
XLABELS |= dict.fromkeys((RATIO, IDLE), "training step")

PANELS = (RUNNING, AT_WORK, UTILISATION, RATIO, IDLE)

FOUR_GPUS = "paper, four GPUs"

PASSED = tuple(range(0, 100, 2))
"""% of a rollout's time at which running requests are counted; none runs at its end."""


def gather(runs: Runs) -> Iterator[Point | Claim | None]:
    """Of Qwen2.5-14B with responses up to 16k on 32 GPUs, one task at a time; a rollout ends with its last response."""
    utilisation = _utilisation()
    points: list[Point | None] = list(_of_paper(utilisation))
    for task in TASKS:
        found = runs.of(model="Qwen2.5-14B", system="verl", task=task)
        told = [(run, _rollouts(run)) for run in found if not run.responses.empty]
        for passed in PASSED:
            place = Place(panel=RUNNING, x=float(passed), unit="%", series=task)
            points.append(place.ours(Value(run, _mean_running(rollouts, passed)) for run, rollouts in told))
            place = Place(panel=AT_WORK, x=float(passed), unit="%", series=task)
            points.append(place.ours(Value(run, _mean_at_work(rollouts, passed)) for run, rollouts in told))
        for step in range(min((len(rollouts) for _, rollouts in told), default=0)):
            for panel, unit, value_of in ((RATIO, "x", _longest_over_median), (IDLE, "%", _idle)):
                place = Place(panel=panel, x=float(step + 1), unit=unit, series=task)
                points.append(place.ours(Value(run, value_of(rollouts[step])) for run, rollouts in told))
        yield _claim(task, utilisation, [Value(run, fmean(map(_idle, rollouts))) for run, rollouts in told])
    yield from sorted(comparing(points), key=lambda point: PANELS.index(point.panel))


def _utilisation() -> pd.DataFrame:
    """The paper's, in per cent: a column per GPU, by the seconds since the rollout began."""
    rows = pd.DataFrame(paper_rows("fig02b"))
    return rows.assign(x=rows["x"].astype(float)).pivot(index="x", columns="series", values="y")


def _busy_until(utilisation: pd.DataFrame) -> pd.Series:
    """When each GPU is idle first, in per cent of the rollout."""
    return (utilisation == 0).idxmax() / float(utilisation.index[-1]) * 100


def _of_paper(utilisation: pd.DataFrame) -> Iterator[Point]:
    busy_until = _busy_until(utilisation)
    for passed in PASSED:
        place = Place(panel=AT_WORK, x=float(passed), unit="%", series=FOUR_GPUS)
        yield place.paper(100 * float((busy_until > passed).mean()))
    seconds = utilisation.index.to_numpy(dtype=float)
    for passed, mean in zip(100 * seconds / seconds[-1], utilisation.mean(axis=1), strict=True):
        yield Place(panel=UTILISATION, x=float(passed), unit="%", series=FOUR_GPUS).paper(float(mean))


def _claim(task: str, utilisation: pd.DataFrame, values: Sequence[Value]) -> Claim:
    return Claim(
        text=f"Qwen2.5-14B, {task}: idle GPUs over a plain rollout (paper: of a task that it does not name)",
        paper=100 - float(_busy_until(utilisation).mean()),
        ours=Place(panel=IDLE, x=task, unit="%").ours(values),
        unit="%",
    )


def _rollouts(run: Run) -> list[pd.DataFrame]:
    """The responses of each step, with the share of the rollout's time at which each ended."""
    rollouts = []
    for _, responses in run.responses.groupby("step"):
        began, ended = responses["launched_at_s"].min(), responses["finished_at_s"].max()
        rollouts.append(responses.assign(ended=(responses["finished_at_s"] - began) / (ended - began)))
    return rollouts


def _mean_running(rollouts: list[pd.DataFrame], passed: float) -> float:
    return float(100 * sum((rollout["ended"] > passed / 100).mean() for rollout in rollouts) / len(rollouts))


def _mean_at_work(rollouts: list[pd.DataFrame], passed: float) -> float:
    """Share of the engines that have not ended their last response."""
    return float(100 * fmean((rollout.groupby("engine")["ended"].max() > passed / 100).mean() for rollout in rollouts))


def _longest_over_median(rollout: pd.DataFrame) -> float:
    return float(rollout["length_tokens"].max() / rollout["length_tokens"].median())


def _idle(rollout: pd.DataFrame) -> float:
    """Share of the rollout's time in which an engine has nothing left to do, mean over the engines."""
    return float(100 * (1 - rollout.groupby("engine")["ended"].max().mean()))


EXHIBIT = Exhibit(
    name="fig02b",
    title="How unbalanced the rollouts of plain batches are, Qwen2.5-14B (Fig 2b)",
    experiments=("table1",),
    note="A modelled rollout begins with the start of its engines, a fifth of this one (conf/hardware/h800.yaml).",
    gather=gather,
    draw=partial(compare_lines, xlabel=XLABELS),
)
