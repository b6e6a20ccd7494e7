"""The availability that PolyRL's artifact replays: a worker more every half hour up to four, then one less, one more.

A step counts with the workers that served in it on average. What a steady number of workers gives is taken from
experiment=elastic-workers, interpolated between whole numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from statistics import fmean
from typing import Final

import numpy as np

from rollpacker.analysis.exhibit import Exhibit
from rollpacker.analysis.exhibits.elastic_workers import WORKERS, throughput
from rollpacker.analysis.numbers import Place, Point, Value
from rollpacker.analysis.plots import compare_lines
from rollpacker.analysis.runs import Runs, shared_steps

THROUGHPUT, MEMBERS = "trained tokens per second", "workers that serve, mean of the step"
SERIES, STEADY = "staircase", "as many workers, steadily"
_SECONDS_PER_HOUR: Final = 3600.0


def gather(runs: Runs) -> Iterator[Point | None]:
    """Every step at its end: of several seeds the means, of its end too."""
    steady = {number: runs.of(setup="elastic", study=f"elastic-workers-{number}") for number in WORKERS}
    rates = {number: fmean(map(throughput, same)) for number, same in steady.items() if same}
    found = runs.of(setup="elastic", study="elastic-staircase")
    for step in shared_steps(found):
        hours = round(fmean(float(run.steps["finished_at_s"][step]) for run in found) / _SECONDS_PER_HOUR, 4)
        trained = [Value(run, float((run.steps["tokens_trained"] / run.steps["step_time_s"])[step])) for run in found]
        members = [Value(run, float(run.steps["num_members_mean"][step])) for run in found]
        shown = [(THROUGHPUT, "tokens/s", SERIES, trained), (MEMBERS, "workers", SERIES, members)]
        if rates:
            expected = [Value(run, float(np.interp(y, list(rates), list(rates.values())))) for run, y in members]
            shown.append((THROUGHPUT, "tokens/s", STEADY, expected))
        for panel, unit, series, values in shown:
            yield Place(panel=panel, x=hours, unit=unit, series=series).ours(values)


EXHIBIT = Exhibit(
    name="elastic_staircase",
    title="Rollout workers that come and go every half hour, Qwen3-8B (ours)",
    experiments=("elastic-staircase", "elastic-workers"),
    gather=gather,
    draw=partial(compare_lines, xlabel="hours"),
)
