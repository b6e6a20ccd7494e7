"""What is recorded of a finished run: every column of its tables, events and commands, and its final weights.

A column is a list with an entry per step, or one entry where all are the same. Of a table with one row per step, the
entry is the value; of any other one, a digest of the values. So a difference names the run, the table, the column and
the step. Numbers are rounded to nine digits: two machines' libraries may differ in the last bits.

A real run's numbers are compared with a tolerance: two processors add in different orders.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

from rollpacker.metrics.event_log import attempt_path
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.tables import read_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

NUM_DIGITS = 9
DIGEST_CHARACTERS = 6

_SMALL = 1e-3
"""With a tolerance: a number that is small beside it, such as a loss whose terms cancel, is as good as 0."""

Record = dict[str, dict[str, list[Any]]]
"""Table, column, an entry per step. The classes of events and commands are tables too, and their order is one."""

ORDER = "order of events and commands"


def record_of(run_dir: Path) -> Record:
    """Record every column of a run's tables."""
    record: Record = {}
    for table in TABLES:
        rows = read_table(run_dir, table).to_pylist()
        record[table] = _columns_of([(row["step"], row) for row in rows])
    return record


def record_of_events(run_dir: Path) -> Record:
    """Record the event log of a run that was never resumed; what comes before the first step counts to step 0."""
    objects: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    order: list[tuple[int, dict[str, Any]]] = []
    step = 0
    for line in attempt_path(run_dir, 0).read_text().splitlines()[1:]:
        entry = json.loads(line)
        if entry["event"]["type"] == "StepStarted":
            step = entry["event"]["step"]
        for each in ({"now": entry["now"]} | entry["event"], *entry["commands"]):
            name = each.pop("type")
            objects.setdefault(name, []).append((step, each or {"count": 1}))
            order.append((step, {"type": name}))
    return {name: _columns_of(each) for name, each in sorted(objects.items())} | {ORDER: _columns_of(order)}


def differences(recorded: Record, now: Record, tolerance: float = 0.0) -> Iterator[str]:
    """Name each table, column and step in which a run is not what was recorded; the tolerance is relative."""
    for table, columns in recorded.items():
        current = now.get(table, {})
        for column, entries in columns.items():
            values = current.get(column, [])
            num_steps = max(len(values), len(entries))
            before, after = (each * num_steps if len(each) == 1 else each for each in (entries, values))
            if len(before) != len(after):
                yield f"{table}.{column} has {len(after)} entries, not {len(before)}"
            for step, (was, is_now) in enumerate(zip(before, after)):  # noqa: B905 a missing one is named above
                if not _is_near(was, is_now, tolerance):
                    yield f"{table}.{column}, step {step}: {was} was recorded, {is_now} came"


def _is_near(was: Any, is_now: Any, tolerance: float) -> bool:
    if isinstance(was, float) and isinstance(is_now, float):
        return math.isclose(was, is_now, rel_tol=tolerance, abs_tol=tolerance * _SMALL)
    return bool(was == is_now)


def _columns_of(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, list[Any]]:
    """Gather (step, row) by column; a step without rows has the entry None."""
    num_steps = max(step for step, _ in rows) + 1
    columns: dict[str, list[list[Any]]] = {column: [[] for _ in range(num_steps)] for column in rows[0][1]}
    for step, row in rows:
        for column, value in row.items():
            columns[column][step].append(_rounded(value))
    is_one_per_step = all(len(values) == 1 for steps in columns.values() for values in steps)
    entries = {
        column: [values[0] for values in steps] if is_one_per_step else list(map(_digest, steps))
        for column, steps in columns.items()
    }
    return {column: each[:1] if each.count(each[0]) == len(each) else each for column, each in entries.items()}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{NUM_DIGITS}g}")
    if isinstance(value, list):
        return list(map(_rounded, value))
    return value


def _digest(values: list[Any]) -> str | None:
    if not values:
        return None
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:DIGEST_CHARACTERS]


def text_of(record: Record) -> str:
    """Write a record as JSON with one line per column, as a difference is read."""
    tables = []
    for table, columns in record.items():
        lines = ",\n".join(f"    {json.dumps(column)}: {json.dumps(entries)}" for column, entries in columns.items())
        tables.append(f"  {json.dumps(table)}: {{\n{lines}\n  }}")
    return "{\n" + ",\n".join(tables) + "\n}\n"
