"""The paper's numbers, read from CSV files with the columns figure, panel, series, x, y, y_unit.

Invariant: nothing here knows of a model. A row is what the paper says of one quantity in one setup; numbers that are
drawn per step are averaged, since the published speedups are ratios of sums. Only the 7B and 14B models are read:
everything else in the paper is left to be predicted.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from rollpacker.core.errors import DataError

FILES = ("table01.csv", "table02.csv", "fig06a.csv", "fig06b.csv", "fig09a.csv", "fig09b.csv", "fig10c.csv")

_CYCLE = 5
"""Steps from one long round to the next, with the paper's factor of 1.25."""

_FIG10C_STEP_S = {"7B": 129.0, "14B": 302.0}
"""The printed step time of a long round, of which the figure gives shares."""

_FIG10C_SYSTEM = "tail-reward-planner"
"""The figure is of RollPacker, but its stages add up to the step as if no training overlapped the rollout: so they are
compared with the system that has all but the stream trainer."""

_SYSTEMS = {"veRL": "verl", "RLHFuse": "rlhfuse", "Flexes": "rollpacker"}
"""The paper's names; Flexes is the name of RollPacker's submission."""

_LADDER = {
    "+ Tail Batching": "tail",
    "+ Reward": "tail-reward",
    "+ Parallelism": "tail-reward-planner",
    "+ Trainer": "rollpacker",
}

_TASKS = {"Math": "math", "Code": "code", "LLM-as-a-Judge": "judge"}


class Row(NamedTuple):
    """One number of the paper."""

    exhibit: str
    model: str
    """7B or 14B; in Fig 6 Qwen3-8B by its engines' tensor-parallel degree."""
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


OWN_REFERENCE = Path(__file__).parents[1] / "paper"


def read_reference(folder: Path) -> list[Row]:
    """Read all files of the reference.

    Raises:
        DataError: One is missing, or is not of the form described above.
    """
    tables = {name: _read(folder / name) for name in FILES}
    try:
        return [
            *_table1(tables["table01.csv"]),
            *_table2(tables["table02.csv"]),
            *_preemptions("Fig 6a", "preemptions", tables["fig06a.csv"]),
            *_preemptions("Fig 6b", "rollout", tables["fig06b.csv"]),
            *_step_times("Fig 9a", "7B", tables["fig09a.csv"]),
            *_step_times("Fig 9b", "14B", tables["fig09b.csv"]),
            *_stages(tables["fig10c.csv"]),
        ]
    except (KeyError, ValueError) as error:
        raise DataError(
            f"The reference in {folder} does not say what it should: {error!r}.",
            f"Its files are {', '.join(FILES)}, with the columns figure, panel, series, x, y and y_unit.",
            "Compare them with those that are installed, in rollpacker/analysis/paper.",
        ) from error


def _read(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            return list(csv.DictReader(lines))
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}.",
            f"A reference is a folder with {', '.join(FILES)}.",
            "Name such a folder by reference=DIR; left out, it is the one that is installed.",
        ) from error


def _table1(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    stages = {"Rollout": "rollout", "Reward": "reward", "Training": "train"}
    for row in rows:
        share = float(row["y"]) / 100
        quantity = f"{stages[row['x']]}_share"
        yield Row("Table 1", "14B", "verl", _TASKS[row["series"]], "plain", quantity, share, _weight(share))


def _table2(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    for row in rows:
        if row["x"] in _LADDER:
            model = row["series"].removeprefix("Qwen2.5-").partition("/")[0]
            yield Row("Table 2", model, _LADDER[row["x"]], "mix", "all", "speedup", float(row["y"]))


def _preemptions(exhibit: str, quantity: str, rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    for row in rows:
        model, kind = f"8B {row['x'].replace('=', '')}", row["series"].split()[0].lower()
        yield Row(exhibit, model, "tail-reward", "mix", kind, quantity, float(row["y"]), 0.0)


def _step_times(exhibit: str, model: str, rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    times: dict[str, list[float]] = {}
    for row in rows:
        times.setdefault(_SYSTEMS[row["series"]], []).append(float(row["y"]))
    for system, of_steps in times.items():
        yield Row(exhibit, model, system, "mix", "all", "step", statistics.mean(of_steps))
    packed = times["rollpacker"]
    short = [time for step, time in enumerate(packed, start=1) if step % _CYCLE]
    yield Row(exhibit, model, "rollpacker", "mix", "short", "step", statistics.mean(short))
    yield Row(exhibit, model, "rollpacker", "mix", "long", "step", statistics.mean(packed[_CYCLE - 1 :: _CYCLE]))


def _stages(rows: Iterable[Mapping[str, str]]) -> Iterator[Row]:
    stages = {"Sync.": "weight_sync", "Rollout": "rollout", "Reward": "reward", "Training": "train"}
    for row in rows:
        name, _, kind = row["series"].partition(" (")
        model = row["x"]
        share = float(row["y"]) / 100
        seconds = share * _FIG10C_STEP_S[model]
        yield Row("Fig 10c", model, _FIG10C_SYSTEM, "mix", kind.split()[0], stages[name], seconds, _weight(share))


def _weight(share: float) -> float:
    return min(1.0, share / 0.1)
