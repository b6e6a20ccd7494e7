"""Finds runs and reads their step tables; says what is missing and goes on with the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rollpacker.core.errors import DataError
from rollpacker.metrics.tables import read_frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run that has at least one step."""

    folder: Path
    system: str
    steps: pd.DataFrame
    """The `steps` table, by step."""

    @property
    def is_modelled(self) -> bool:
        return bool(self.steps["modelled"].any())


def read_runs(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Read every run that can be read; also gives a sentence for each one that cannot."""
    runs, problems = [], []
    for folder in folders:
        try:
            steps = read_frame(folder, "steps").sort_values("step", ignore_index=True)
        except DataError as error:
            problems.append(f"{folder}: {error.problem}")
            continue
        if steps.empty:
            problems.append(f"{folder}: no step has finished yet")
            continue
        runs.append(Run(folder=folder, system=str(steps["system"].iloc[0]), steps=steps))
    return runs, problems
