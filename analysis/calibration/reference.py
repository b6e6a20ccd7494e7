"""The paper's numbers, read from CSV files with the columns figure, panel, series, x, y, y_unit.

Invariant: nothing here knows of a model. A row is what the paper says of one quantity in one setup; numbers that are
drawn per step are averaged, since the published speedups are ratios of sums. Only the 7B and 14B models are read:
everything else in the paper is left to be predicted.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rollpacker.analysis.exhibits import fig10, table1, table2
from rollpacker.analysis.numbers import PAPER_SYSTEMS
from rollpacker.core.errors import DataError

MODELS = ("7B", "14B", "8B TP1", "8B TP2")
"""In Fig 6 Qwen3-8B by its engines' tensor-parallel degree."""

_CYCLE = 5
"""Steps from one long round to the next, with the paper's factor of 1.25."""


class Row(NamedTuple):
    """One number of the paper."""

    exhibit: str
    model: str
    """One of `MODELS`."""
    system: str
    """As the configuration names it."""
    task: str
    """The one domain of the run, or `mix`."""
    kind: str
    """Of the rounds that count: plain, short, long, or all."""
    quantity: str
    """A stage's seconds (rollout, reward, train, weight_sync, step) or share of the step (..._share), `speedup`, or
    `preemptions` in a round."""
    value: float
    """Seconds, share of 1, ratio to veRL, or a number."""
    weight: float = 1.0
    """In the fit: a stage that takes less than a tenth of its step counts for less. Fig 6 counts nothing: the lengths
    of Qwen3's responses are not published."""


def read_reference(folder: Path) -> list[Row]:
    """Read all files of the reference.

    Raises:
        DataError: One is missing, or is not of the form described above.
    """
    return [row for name, rows_of in _READERS.items() for row in _read(folder / name, rows_of)]


def _read(file: Path, rows_of: Callable[[Iterable[Mapping[str, str]]], Iterator[Row]]) -> list[Row]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(_possible(rows_of(csv.DictReader(lines, restval=""))))
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}.",
            f"A reference is a folder with {', '.join(FILES)}.",
            "Name such a folder by reference=DIR; left out, it is the one that is installed.",
        ) from error
    except (LookupError, ValueError, csv.Error) as error:
        raise DataError(
            f"{file} does not say what it should: {type(error).__name__}: {error}.",
            "It has the columns figure, panel, series, x, y and y_unit, and each y is a finite number above 0.",
            "Compare it with the one that is installed, in rollpacker/analysis/paper.",
        ) from error


def _possible(rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        if row.model not in MODELS:
            raise ValueError(f"model {row.model} is none of {', '.join(MODELS)}")
        if not 0 < row.value < math.inf:
            raise ValueError(f"{row.quantity} is {row.value:g}")
        yield row


def _table1(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    for row in rows:
        share = float(row["y"]) / 100
        quantity = f"{fig10.STAGES[row['x']].removeprefix('exposed_')}_share"
        yield Row("Table 1", "14B", "verl", table1.TASKS[row["series"]], "plain", quantity, share, _weight(share))


def _table2(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    systems = {row: system for system, (row, _) in table2.LADDER.items() if system != "verl"}
    for row in rows:
        if row["x"] in systems:
            model = row["series"].removeprefix("Qwen2.5-").partition("/")[0]
            yield Row("Table 2", model, systems[row["x"]], "mix", "all", "speedup", float(row["y"]))


def _preemptions(rows: Iterable[Mapping[str, str]], exhibit: str, quantity: str) -> Iterator[Row]:
    for row in rows:
        model, kind = f"8B {row['x'].replace('=', '')}", _kind(row["series"])
        yield Row(exhibit, model, "tail-reward", "mix", kind, quantity, float(row["y"]), 0.0)


def _step_times(rows: Iterable[Mapping[str, str]], exhibit: str, model: str) -> Iterator[Row]:
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(PAPER_SYSTEMS[row["series"]], []).append(float(row["y"]))
    packed = times["rollpacker"]
    short = [time for step, time in enumerate(packed, start=1) if step % _CYCLE]
    of_kind = [(system, "all", of_steps) for system, of_steps in times.items()]
    for system, kind, chosen in (
        *of_kind,
        ("rollpacker", "short", short),
        ("rollpacker", "long", packed[_CYCLE - 1 :: _CYCLE]),
    ):
        yield Row(exhibit, model, system, "mix", kind, "step", statistics.mean(chosen))


def _stages(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    for row in rows:
        name, _, rounds = row["series"].partition(" (")
        model, share, stage = row["x"], float(row["y"]) / 100, fig10.STAGES[name].removeprefix("exposed_")
        seconds = share * fig10.LONG_STEP_S[model]
        yield Row("Fig 10c", model, fig10.SYSTEM, "mix", _kind(rounds), stage, seconds, _weight(share))


def _kind(rounds: str) -> str:
    kind = rounds.partition(" ")[0].lower()
    if kind not in {"short", "long"}:
        raise ValueError(f"rounds are short or long, not {kind}")
    return kind


def _weight(share: float) -> float:
    return min(1.0, share / 0.1)


_READERS: Mapping[str, Callable[[Iterable[Mapping[str, str]]], Iterator[Row]]] = {
    "table01.csv": _table1,
    "table02.csv": _table2,
    "fig06a.csv": partial(_preemptions, exhibit="Fig 6a", quantity="preemptions"),
    "fig06b.csv": partial(_preemptions, exhibit="Fig 6b", quantity="rollout"),
    "fig09a.csv": partial(_step_times, exhibit="Fig 9a", model="7B"),
    "fig09b.csv": partial(_step_times, exhibit="Fig 9b", model="14B"),
    "fig10c.csv": _stages,
}

FILES = tuple(_READERS)
