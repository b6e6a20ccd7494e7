"""The columns of a comparison: runs that differ in nothing but their seed are repetitions of one column.

What a run keeps and reports tells nothing apart, nor does how the path of one file is written.
Invariant: a column's runs are of one system, all measured or all modelled, and each has a seed of its own.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

from rollpacker.analysis.runs import Run
from rollpacker.config.keys import REQUIRED, legal_keys
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import counted, in_hydra, shortened
from rollpacker.timeline.run_tables import ASYNC

_NOT_COMPARED: Final = re.compile(
    r"tracker\..*|run\.(seed|dir|resume|progress|callbacks|samples_per_step|best_by|keep_.*|checkpoint_.*)"
)
"""Keys that repetitions may differ in: what is trained is the same, and what is generated but for the seed."""

_MOST_KEYS: Final = 3
"""That a column's name has, and the sentence about columns of several systems."""


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
        own = {key: _compared(run, key, value) for key, value in _settings(run).items()}
        setting = json.dumps([run.system, run.is_modelled, own], sort_keys=True, default=str)
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
    keys = [key for key in _differing([column.runs[0] for column in columns]) if not key.startswith("system.")]
    if not keys:
        return ""
    values = {key: [_settings(column.runs[0]).get(key) for column in columns] for key in keys[:_MOST_KEYS]}
    words = [f"{key} ({', '.join(dict.fromkeys(map(_shown, own)))})" for key, own in values.items()]
    return f"The columns differ in more than their systems: {', '.join(words)}{_more(keys)}."


def _shown(value: Any) -> str:
    return shortened(in_hydra(value))


def _more(keys: Sequence[str]) -> str:
    """How many keys are not shown, where there are too many."""
    return f" and {counted(len(keys) - _MOST_KEYS, 'more key')}" if len(keys) > _MOST_KEYS else ""


def _settings(run: Run) -> dict[str, Any]:
    """What tells a run from others, by dotted keys; a key that its record lacks has the default, and null is absent."""
    settings = _defaults() | dict(_flat(run.config, ""))
    if settings["trainer.lr_schedule"] == "constant":  # another spans the steps; all means are over those shared
        del settings["run.num_steps"]
    return {key: value for key, value in settings.items() if value is not None and not _NOT_COMPARED.fullmatch(key)}


@cache
def _defaults() -> dict[str, Any]:
    """Of every key but those of sections that a run may be without; null of one that has none."""
    keys = [key for key in legal_keys(RunConfig).values() if not key.absent_section]
    return dict(_flat({key.name: None if key.default == REQUIRED else key.default for key in keys}, ""))


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _compared(run: Run, key: str, value: Any) -> Any:
    """A value as it is compared: of files and folders that are there, where they really lie."""
    if isinstance(value, list):
        return [_compared(run, key, each) for each in value]
    known = legal_keys(RunConfig).get(key)
    is_path = known is not None and known.is_path and isinstance(value, str)
    path = run.started_in / value if is_path else ""
    return os.path.realpath(path) if os.path.exists(path) else value  # noqa: PTH110  never raises, whatever the name is


def _details(columns: Mapping[int, Sequence[Run]]) -> dict[int, str]:
    """Tell columns of one system apart: by the keys that differ, or where this is not enough by their folders."""
    settings = {at: _settings(runs[0]) for at, runs in columns.items()}
    differing = _differing([runs[0] for runs in columns.values()])
    last_parts = Counter(key.rpartition(".")[2] for key in {*legal_keys(RunConfig), *differing})
    names = {key: last if last_parts[last := key.rpartition(".")[2]] == 1 else key for key in differing}
    details = {}
    for at, own in settings.items():
        words = [f"{name}={_shown(own.get(key))}" for key, name in names.items()]
        details[at] = ", ".join(words[:_MOST_KEYS]) + _more(differing)
    if len(set(details.values())) < len(details):
        return {at: _folder(runs) for at, runs in columns.items()}
    return details


def _differing(runs: Sequence[Run]) -> list[str]:
    """The keys in which some runs differ."""
    settings = [{key: _compared(run, key, value) for key, value in _settings(run).items()} for run in runs]
    keys = dict.fromkeys(key for own in settings for key in own)
    return [key for key in keys if len({json.dumps(own.get(key), default=str) for own in settings}) > 1]


def _folder(runs: Sequence[Run]) -> str:
    """The run's folder, or how those of several runs begin."""
    shared = os.path.commonprefix([str(run.folder) for run in runs])  # noqa: RUF071  (seed-0 and seed-1 share seed-)
    return shared.rstrip("-_./") or str(runs[0].folder)
