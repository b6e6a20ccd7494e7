"""Repairs the tables of a run before it is resumed.

    <run.dir>/metrics/broken-001/steps/step-000000.parquet     what was damaged, with all files of its steps

Invariant: nothing is deleted, and every step that is whole in all tables counts. What cannot be read now, and may be
whole, stops the run before anything is moved. A manifest that is gone is made again from the names of the parts, which
say the same.
"""

from __future__ import annotations

import itertools
import re
import sys
from typing import TYPE_CHECKING

from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.files import storage_errors, write_atomically
from rollpacker.metrics.read_errors import not_resumable_now
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.tables import (
    MANIFEST,
    DamagedTables,
    Manifest,
    Part,
    UnreadableTables,
    load_manifest,
    read_parts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rollpacker.metrics.columns import TableSchema

_PART_NAME = re.compile(r"steps?-(\d{6,})(?:-(\d{6,}))?\.parquet")


def mend_tables(
    folder: Path, tables: Mapping[str, TableSchema] = TABLES, *, first_step: int = sys.maxsize
) -> list[str]:
    """Set aside what is damaged of some tables; gives what a person should know of it, in sentences.

    Only the one writer of the tables may call, before it opens them and takes back the steps from `first_step`: parts
    that hold only such steps may be as they are.

    Raises:
        DataError: Another version wrote them.
        StorageFailed: They cannot be read now, or cannot be moved.
    """
    try:
        return _mend(folder, tables, first_step)
    except UnreadableTables as error:
        raise not_resumable_now(error.problem) from error


def _mend(folder: Path, tables: Mapping[str, TableSchema], first_step: int) -> list[str]:
    names = (folder / f"broken-{number:03d}" for number in itertools.count(1))
    aside = next(path for path in names if not path.exists())
    notes = []
    try:
        manifest = load_manifest(folder)
        problem = "was missing" if manifest is None else ""
    except DamagedTables:
        manifest, problem = None, "was damaged"
    if manifest is None:
        manifest = Manifest(parts=_parts_by_name(folder, tables), num_truncations=1)
        if manifest.parts or problem == "was damaged":
            notes.append(f"{folder / MANIFEST} {problem}; it was made again from the parts beside it.")
    kept = [part for part in manifest.parts if part.first < first_step]
    broken = {part: told for part in kept if (told := _problem_of(folder, tables, part))}
    if problem == "was damaged":
        _move(folder / MANIFEST, aside / MANIFEST)
    told_from = 0 if tables is EVALUATION_TABLES else 1  # an evaluation has the number of steps before it
    for part, told in broken.items():
        for table in tables:
            if (folder / table / part.file_name).exists():
                _move(folder / table / part.file_name, aside / table / part.file_name)
        first, last = part.first + told_from, min(part.last, first_step - 1) + told_from
        steps = f"step {last}" if first == last else f"steps {first} to {last}"
        notes.append(f"The tables go on without {steps}: {told}. What is left of them is kept in {aside}.")
    if notes:
        whole = tuple(part for part in manifest.parts if part not in broken)
        mended = Manifest(parts=whole, num_truncations=manifest.num_truncations + 1)
        write_atomically(folder / MANIFEST, mended.to_json())
    return notes


def _problem_of(folder: Path, tables: Mapping[str, TableSchema], part: Part) -> str:
    """Say what is wrong with the files of a part; empty when nothing is. The first table has a row of each step."""
    for index, table in enumerate(tables):
        path = folder / table / part.file_name
        try:
            rows = read_parts(folder, table, (part,))
        except FileNotFoundError:
            return f"{path} is missing"
        except DamagedTables as error:
            return error.problem.rstrip(".")  # pyarrow's sentences end with one
        if index == 0:
            steps = rows["step"].to_pylist()
            if not steps or (steps[0], steps[-1]) != (part.first, part.last):
                return f"{path} holds other steps"
    return ""


def _parts_by_name(folder: Path, tables: Mapping[str, TableSchema]) -> tuple[Part, ...]:
    """The parts that every table has; of two that overlap the larger one, which was made from the other."""
    named = [{path.name for path in (folder / table).glob("step*.parquet")} for table in tables]
    return tuple(_without_overlap(list(_parsed(set.intersection(*named)))))


def _parsed(names: set[str]) -> Iterator[Part]:
    for name in names:
        if found := _PART_NAME.fullmatch(name):
            yield Part(first=int(found[1]), last=int(found[2] or found[1]))


def _without_overlap(parts: Sequence[Part]) -> Iterator[Part]:
    end = -1
    for part in sorted(parts, key=lambda part: (part.first, -part.last)):
        if part.first > end:
            yield part
            end = part.last


def _move(source: Path, target: Path) -> None:
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
