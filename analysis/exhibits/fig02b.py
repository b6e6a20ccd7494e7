"""Fig 2b: how unbalanced a rollout of plain batches is: a few long responses keep all GPUs waiting.

The paper's numbers of this figure are not at hand.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Run, Runs

TASKS = ("math", "code", "judge")

RUNNING, RATIO, IDLE = "requests running (%)", "longest over median", "idle GPUs (%)"
XLABELS = {RUNNING: "time of the rollout (%)", RATIO: "training step", IDLE: "training step"}

PASSED = tuple(range(0, 100, 2))
"""% of a rollout's time at which running requests are counted; none runs at its end."""


def gather(runs: Runs) -> Numbers:
    """Of Qwen2.5-14B with responses up to 16k on 32 GPUs, one task at a time; a rollout ends with its last response.

    A modelled rollout begins with the start of its engines, a fifth of this one (conf/hardware/h800.yaml).
    """
    points: list[Point | None] = []
    for task in TASKS:
        found = runs.of(model="Qwen2.5-14B", system="verl", task=task)
        told = [(run, _rollouts(run)) for run in found if not run.responses.empty]
        for passed in PASSED:
            place = Place(panel=RUNNING, x=float(passed), unit="%", series=task)
            points.append(place.ours(Value(run, _mean_running(rollouts, passed)) for run, rollouts in told))
        for step in range(min((len(rollouts) for _, rollouts in told), default=0)):
            for panel, unit, value_of in ((RATIO, "x", _longest_over_median), (IDLE, "%", _idle)):
                place = Place(panel=panel, x=float(step + 1), unit=unit, series=task)
                points.append(place.ours(Value(run, value_of(rollouts[step])) for run, rollouts in told))
    return Numbers(points=comparing(points), missing=runs.missing)


def _rollouts(run: Run) -> list[pd.DataFrame]:
    """The responses of each step, with the share of the rollout's time at which each ended."""
    rollouts = []
    for _, responses in run.responses.groupby("step"):
        began, ended = responses["launched_at_s"].min(), responses["finished_at_s"].max()
        rollouts.append(responses.assign(ended=(responses["finished_at_s"] - began) / (ended - began)))
    return rollouts


def _mean_running(rollouts: list[pd.DataFrame], passed: float) -> float:
    return float(100 * sum((rollout["ended"] > passed / 100).mean() for rollout in rollouts) / len(rollouts))


def _longest_over_median(rollout: pd.DataFrame) -> float:
    return float(rollout["length_tokens"].max() / rollout["length_tokens"].median())


def _idle(rollout: pd.DataFrame) -> float:
    """Share of the rollout's time in which an engine has nothing left to do, mean over the engines."""
    return float(100 * (1 - rollout.groupby("engine")["ended"].max().mean()))


def draw(numbers: Numbers) -> Figure:
    """Requests over the time of a rollout; then two measures of each step."""
    return compare_lines(numbers, xlabel=XLABELS, ylabel="")


EXHIBIT = Exhibit(
    name="fig02b",
    title="How unbalanced the rollouts of plain batches are, Qwen2.5-14B (Fig 2b)",
    experiments=("table1",),
    gather=gather,
    draw=draw,
)
