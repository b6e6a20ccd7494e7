"""A calibration: the modelled runs of every trial, side by side, and the fit over them.

Invariant: runs depend on their setup and the parameters alone, so the same reference gives the same fit, whatever the
number of processes. What runs write goes with the campaign.
"""

from __future__ import annotations

import itertools
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pandas as pd

from rollpacker.analysis.calibration.fit import PARAMETERS, Values, fit
from rollpacker.analysis.calibration.reference import Row
from rollpacker.analysis.calibration.report import Compared
from rollpacker.analysis.calibration.setups import Setup, predict, run_setup, setups_of
from rollpacker.analysis.processes import Processes

HARDWARE = "h800"
"""The option with the data sheet of the GPUs on which the paper measured its times (section 7)."""

NUM_TRIALS_PER_ROUND = len(PARAMETERS) + 1
"""A derivative of each parameter, and a step."""

_SMALLEST = 1e-2
"""Seconds or share; a stage that the model says takes no time would have an infinite residual."""


class Watcher(Protocol):
    """Told how far a campaign is."""

    def stage(self, title: str, /) -> None: ...

    def advance(self) -> None:
        """One more modelled run is done."""


def calibrate(
    rows: Sequence[Row], num_rounds: int, processes: Processes, watcher: Watcher
) -> tuple[Values, list[Compared]]:
    """Fit the parameters of the paper's node type; gives their values, and every row with what the model then says."""
    fitted = [row for row in rows if row.weight]
    numbers = itertools.count()

    def run(trials: Sequence[Values], setups: Sequence[Setup]) -> list[dict[Setup, pd.DataFrame]]:
        numbered = [(next(numbers), values) for values in trials]
        watcher.stage(f"trials {numbered[0][0] + 1} to {numbered[-1][0] + 1} of the parameters")
        tasks = []
        for number, values in numbered:
            words = (f"hardware={HARDWARE}", *(f"hardware.{key}={value}" for key, value in values.items()))
            tasks += [(number, setup, words, Path(scratch, f"trial-{number}")) for setup in setups]
        summaries: dict[int, dict[Setup, pd.DataFrame]] = {number: {} for number, _ in numbered}
        for (number, setup, *_), summary in processes.results(_run_task, tasks):
            summaries[number][setup] = summary
            watcher.advance()
        return list(summaries.values())

    def residuals(trials: Sequence[Values]) -> list[list[float]]:
        return [
            [row.weight * math.log(max(predict(row, summaries), _SMALLEST) / row.value) for row in fitted]
            for summaries in run(trials, setups_of(fitted))
        ]

    with tempfile.TemporaryDirectory(prefix="rollpacker-calibrate-", ignore_cleanup_errors=True) as scratch:
        values, _ = fit(residuals, PARAMETERS, num_rounds)
        [summaries] = run([values], setups_of(rows))
    return values, [Compared(row, predict(row, summaries)) for row in rows]


def num_runs(rows: Sequence[Row], num_rounds: int) -> int:
    """Modelled runs of a whole campaign, at most."""
    num_fitted = len(setups_of([row for row in rows if row.weight]))
    return num_fitted * (num_rounds * NUM_TRIALS_PER_ROUND + 1) + len(setups_of(rows))


def _run_task(task: tuple[int, Setup, tuple[str, ...], Path]) -> pd.DataFrame:
    _, setup, words, folder = task
    return run_setup(setup, words, folder)
