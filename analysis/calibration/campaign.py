"""A calibration: the modelled runs of every trial, side by side, and the fit over them.

Invariant: runs depend on their setup and the parameters alone, so the same reference gives the same fit, whatever the
number of processes. Processes and their scratch folder end with the campaign.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rollpacker.analysis.calibration.fit import PARAMETERS, Parameter, Values, fit
from rollpacker.analysis.calibration.reference import Row
from rollpacker.analysis.calibration.report import Compared
from rollpacker.analysis.calibration.setups import Setup, Summary, predict, run_setup, setups_of
from rollpacker.analysis.processes import Processes, open_processes

NUM_TRIALS_PER_ROUND = len(PARAMETERS) + 1
"""A derivative of each parameter, and a step."""

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
        self, rows: Sequence[Row], hardware: str, processes: Processes, folder: Path, watcher: Watcher
    ) -> None:
        self._rows = rows
        self._setups = setups_of(rows)
        self._fitted = setups_of([row for row in rows if row.weight])
        self._hardware = hardware
        self._processes = processes
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
        first = self._num_trials + 1
        self._watcher.stage(f"trials {first} to {first + len(trials) - 1} of the parameters")
        tasks = []
        for index, values in enumerate(trials):
            words = (f"hardware={self._hardware}", *(f"hardware.{key}={value}" for key, value in values.items()))
            folder = self._folder / f"trial-{self._num_trials + index}"
            tasks += [(index, setup, words, folder) for setup in setups]
        self._num_trials += len(trials)
        summaries: list[dict[Setup, Summary]] = [{} for _ in trials]
        for (index, setup, *_), summary in self._processes.results(_run_task, tasks):
            summaries[index][setup] = summary
            self._watcher.advance()
        return summaries


@contextmanager
def open_campaign(rows: Sequence[Row], hardware: str, num_jobs: int, watcher: Watcher) -> Iterator[Campaign]:
    """Open the processes; they end with the block."""
    with (
        tempfile.TemporaryDirectory(prefix="rollpacker-calibrate-", ignore_cleanup_errors=True) as folder,
        open_processes(num_jobs) as processes,
    ):
        yield Campaign(rows, hardware, processes, Path(folder), watcher)


def num_runs(rows: Sequence[Row], num_rounds: int) -> int:
    """Modelled runs of a whole campaign, at most."""
    num_fitted = len(setups_of([row for row in rows if row.weight]))
    return num_fitted * (num_rounds * NUM_TRIALS_PER_ROUND + 1) + len(setups_of(rows))


def _run_task(task: tuple[int, Setup, tuple[str, ...], Path]) -> Summary:
    _, setup, words, folder = task
    return run_setup(setup, words, folder)
