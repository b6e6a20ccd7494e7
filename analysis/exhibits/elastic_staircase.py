"""The availability that PolyRL's artifact replays: a worker more every half hour up to four, then one less, one more.

A step counts with the workers that served in it on average. What a steady number of workers gives is taken from
experiment=elastic-workers, interpolated between whole numbers.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from matplotlib.figure import Figure

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import WORKERS, throughput
from rollpacker.analysis.numbers import Numbers, Place, Point, Value, comparing
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs

THROUGHPUT, MEMBERS = "trained tokens per second", "workers that serve, mean of the step"
SERIES, STEADY = "staircase", "as many workers, steadily"
_SECONDS_PER_HOUR: Final = 3600.0


def gather(runs: Runs) -> Numbers:
    """Every step at its end."""
    points: list[Point | None] = []
    steady = {number: runs.of(setup="elastic", study=f"elastic-workers-{number}") for number in WORKERS}
    for run in runs.of(setup="elastic", study="elastic-staircase"):
        rates = {number: throughput(same[0]) for number, same in steady.items() if same}
        for _, step in run.steps.iterrows():
            hours = round(float(step["finished_at_s"]) / _SECONDS_PER_HOUR, 4)
            rate = float(step["tokens_trained"] / step["step_time_s"])
            members = float(step["num_members_mean"])
            shown = [(THROUGHPUT, "tokens/s", SERIES, rate), (MEMBERS, "workers", SERIES, members)]
            if rates:
                expected = float(np.interp(members, list(rates), list(rates.values())))
                shown.append((THROUGHPUT, "tokens/s", STEADY, expected))
            points += [
                Place(panel=panel, x=hours, unit=unit, series=series).ours([Value(run, y)])
                for panel, unit, series, y in shown
            ]
    return Numbers(points=comparing(points), missing=runs.missing)


def draw(numbers: Numbers) -> Figure:
    """Throughput and workers over the time of the run."""
    return compare_lines(numbers, xlabel="hours", ylabel="")


EXHIBIT = Exhibit(
    name="elastic_staircase",
    title="Rollout workers that come and go every half hour, Qwen3-8B (ours)",
    experiments=("elastic-staircase", "elastic-workers"),
    gather=gather,
    draw=draw,
)
