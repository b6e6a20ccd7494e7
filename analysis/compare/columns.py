"""The columns of a comparison: runs that differ in nothing but their seed are repetitions of one column.

Invariant: a column's runs are of one system, all measured or all modelled, and each has a seed of its own.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rollpacker.analysis.runs import Run
from rollpacker.analysis.settings import MOST_KEYS, differing, more, shown, values_said
from rollpacker.config.keys import legal_keys
from rollpacker.config.schema import RunConfig
from rollpacker.timeline.run_tables import ASYNC


@dataclass(frozen=True, kw_only=True)
class Column:
    """One setting, and its runs."""

    runs: tuple[Run, ...]
    detail: str = ""
    """What tells it from the other columns of its system: keys with their values, or a folder."""

    @property
    def system(self) -> str:
        return self.runs[0].system

    @property
    def is_modelled(self) -> bool:
        return self.runs[0].is_modelled

    @property
    def is_async(self) -> bool:
        """Its engines go on while the trainer learns."""
        return any(ASYNC in set(run.steps["round_kind"]) for run in self.runs)

    @cached_property
    def by_seed(self) -> Mapping[int, Run]:
        """Its runs."""
        return {run.seed: run for run in self.runs}

    def label(self, system: str) -> str:
        """Its name, with this one for its system."""
        return f"{system}, {self.detail}" if self.detail else system


def columns_of(runs: Sequence[Run]) -> list[Column]:
    """Group runs, in the order of the first of each column; runs of one setting and seed are of different columns."""
    groups: dict[str, list[list[Run]]] = {}
    for run in runs:
        setting = json.dumps([run.system, run.is_modelled, run.resolved_settings], sort_keys=True, default=str)
        columns = groups.setdefault(setting, [])
        column = next((column for column in columns if run.seed not in {other.seed for other in column}), None)
        if column is None:
            columns.append(column := [])
        column.append(run)
    grouped = [column for columns in groups.values() for column in columns]
    grouped.sort(key=lambda column: runs.index(column[0]))
    num_columns = Counter(column[0].system for column in grouped)
    details = dict.fromkeys(range(len(grouped)), "")
    for system, number in num_columns.items():
        if number > 1:
            details |= _details({at: column for at, column in enumerate(grouped) if column[0].system == system})
    return [Column(runs=tuple(column), detail=details[at]) for at, column in enumerate(grouped)]


def said_of_settings(columns: Sequence[Column]) -> str:
    """That columns of several systems differ in other keys too, and in which; empty where they do not."""
    if len({column.system for column in columns}) == 1:
        return ""  # the columns' names say it
    first = [column.runs[0] for column in columns]
    keys = [key for key in differing([run.resolved_settings for run in first]) if not key.startswith("system.")]
    said = values_said(keys, [run.settings for run in first])
    return f"The columns differ in more than their systems: {said}." if keys else ""


def _details(columns: Mapping[int, Sequence[Run]]) -> dict[int, str]:
    """Tell columns of one system apart: by the keys that differ, or where this is not enough by their folders."""
    keys = differing([runs[0].resolved_settings for runs in columns.values()])
    last_parts = Counter(key.rpartition(".")[2] for key in {*legal_keys(RunConfig), *keys})
    names = {key: last if last_parts[last := key.rpartition(".")[2]] == 1 else key for key in keys}
    details = {}
    for at, runs in columns.items():
        words = [f"{name}={shown(runs[0].settings.get(key))}" for key, name in names.items()]
        details[at] = ", ".join(words[:MOST_KEYS]) + more(keys)
    if len(set(details.values())) < len(details):
        return {at: _folder(runs) for at, runs in columns.items()}
    return details


def _folder(runs: Sequence[Run]) -> str:
    """The run's folder, or how those of several runs begin."""
    shared = os.path.commonprefix([str(run.folder) for run in runs])  # noqa: RUF071  (seed-0 and seed-1 share seed-)
    return shared.rstrip("-_./") or str(runs[0].folder)
