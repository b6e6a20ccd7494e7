"""A calibration: the modelled runs of every trial, side by side, and the fit over them.

Invariant: runs depend on their setup and the parameters alone, so the same reference gives the same fit, whatever the
number of processes. Processes and their scratch folder end with the campaign.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rollpacker.calibration.fit import PARAMETERS, Parameter, Values, fit
from rollpacker.calibration.reference import Row
from rollpacker.calibration.report import Compared
from rollpacker.calibration.setups import Setup, Summary, predict, run_setup, setups_of

NUM_TRIALS_PER_ROUND = len(PARAMETERS) + 3
"""A derivative of each parameter, and three steps."""

_SMALLEST = 1e-2
"""Seconds or share; a stage that the model says takes no time would have an infinite residual."""


class Watcher(Protocol):
    """Told how far a campaign is."""

    def stage(self, title: str, /) -> None: ...

    def advance(self) -> None:
        """One more modelled run is done."""


class Campaign:
    """Runs trials of the parameters against a reference."""

    def __init__(
        self, rows: Sequence[Row], hardware: str, pool: ProcessPoolExecutor, folder: Path, watcher: Watcher
    ) -> None:
        self._rows = rows
        self._setups = setups_of(rows)
        self._fitted = setups_of([row for row in rows if row.weight])
        self._hardware = hardware
        self._pool = pool
        self._folder = folder
        self._watcher = watcher
        self._num_trials = 0

    def fit(self, num_rounds: int, parameters: Sequence[Parameter] = PARAMETERS) -> tuple[Values, list[Compared]]:
        """Fit the parameters; gives their values and every row with what the model then says."""
        values, _ = fit(self._residuals, parameters, num_rounds)
        [summaries] = self._run([values], self._setups)
        return values, [Compared(row, predict(row, summaries)) for row in self._rows]

    def _residuals(self, trials: Sequence[Values]) -> list[list[float]]:
        return [
            [
                row.weight * math.log(max(predict(row, summaries), _SMALLEST) / row.value)
                for row in self._rows
                if row.weight
            ]
            for summaries in self._run(trials, self._fitted)
        ]

    def _run(self, trials: Sequence[Values], setups: Sequence[Setup]) -> list[dict[Setup, Summary]]:
        runs = []
        first = self._num_trials + 1
        self._watcher.stage(f"trials {first} to {first + len(trials) - 1} of the parameters")
        for values in trials:
            words = [f"hardware={self._hardware}", *(f"hardware.{key}={value}" for key, value in values.items())]
            folder = self._folder / f"trial-{self._num_trials}"
            self._num_trials += 1
            runs.append([self._pool.submit(run_setup, setup, words, folder) for setup in setups])
        summaries = []
        for futures in runs:
            of_trial = {}
            for setup, future in zip(setups, futures, strict=True):
                of_trial[setup] = future.result()
                self._watcher.advance()
            summaries.append(of_trial)
        return summaries


@contextmanager
def open_campaign(rows: Sequence[Row], hardware: str, num_jobs: int, watcher: Watcher) -> Iterator[Campaign]:
    """Start the processes; they end when the block does, after the runs at hand."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="rollpacker-calibrate-") as folder:
        pool = ProcessPoolExecutor(num_jobs, mp_context=context, initializer=_leave_interrupts_to_the_parent)
        try:
            yield Campaign(rows, hardware, pool, Path(folder), watcher)
        finally:
            pool.shutdown(cancel_futures=True)


def num_runs(rows: Sequence[Row], num_rounds: int) -> int:
    """Modelled runs of a whole campaign, at most."""
    num_fitted = len(setups_of([row for row in rows if row.weight]))
    return num_fitted * (num_rounds * NUM_TRIALS_PER_ROUND + 1) + len(setups_of(rows))


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
