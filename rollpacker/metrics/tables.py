"""The tables of a run on the disk, as Parquet files of some steps each, and how they are read at any time.

    <run.dir>/metrics/manifest.json                     the steps that count, and in which parts they lie
    <run.dir>/metrics/steps/steps-000000-000063.parquet 64 steps in one file, once they are complete
    <run.dir>/metrics/steps/step-000064.parquet         one step; the same names in domains/, responses/ ...

    <run.dir>/evaluation/manifest.json                  the same for the tables of evaluations, which have other steps
    <run.dir>/accounts/workers.parquet                  written whole, at once; the same of allocations

Invariant: the manifest names complete parts only, each step in exactly one of them, and it changes by one atomic
rename. So a step appears in all tables at once, and a kill at any point leaves the tables as they were after
some step. A part that the manifest does not name does not count; the next `table_writer` deletes it.

A reader holds no lock. A part that the manifest named may be gone before it is opened, because 64 parts became one or a
resumed run took steps back. Then the manifest has changed too, and the reader starts again from there.

Files of old steps are merged because cluster file systems count files: 10,000 steps make 4 x 220 files, not 40,000.
(A reader of the folder without the manifest sees each step once as well, but for the milliseconds in which a merged
file stands beside its 64 sources, or after a kill right then.)
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollpacker.core.errors import DataError
from rollpacker.metrics.account_schemas import ACCOUNT_TABLES
from rollpacker.metrics.columns import SCHEMA_VERSION, VERSION_KEY
from rollpacker.metrics.evaluation_schemas import EVALUATION_TABLES
from rollpacker.metrics.files import make_private_folder, write_atomically
from rollpacker.metrics.read_errors import is_damage
from rollpacker.metrics.schemas import ALL_TABLES
from rollpacker.paths import open_to_read, read_bytes, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import pandas as pd

    Row = Mapping[str, object]

METRICS_FOLDER = "metrics"
"""Below the run directory."""

EVALUATION_FOLDER = "evaluation"
"""The same, of the tables of evaluations."""

ACCOUNTS_FOLDER = "accounts"
"""The same, of the tables of rollout workers and what they cost."""

MANIFEST = "manifest.json"


class DamagedTables(DataError):
    """What a run wrote cannot be read any more."""


class UnreadableTables(DataError):
    """What a run wrote cannot be read now, and may be whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The file of one table that holds the steps from `first` to `last`, both included."""

    first: int
    last: int

    @property
    def file_name(self) -> str:
        if self.first == self.last:
            return f"step-{self.first:06d}.parquet"
        return f"steps-{self.first:06d}-{self.last:06d}.parquet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What counts: the parts that each table has, ascending and without overlap."""

    parts: tuple[Part, ...] = ()
    num_truncations: int = 0
    """How often steps were taken back. While it stays, a part's name stands for one content."""

    @property
    def last_step(self) -> int | None:
        return self.parts[-1].last if self.parts else None

    def to_json(self) -> bytes:
        parts = [[part.first, part.last] for part in self.parts]
        plain = {"schema_version": SCHEMA_VERSION, "num_truncations": self.num_truncations, "parts": parts}
        return json.dumps(plain).encode()


def read_table(run_dir: Path, table: str, steps: tuple[int, int] | None = None) -> pa.Table:
    """Read one of a run's tables, finished or not: all steps up to some moment during the call, each once, in order.

    With `steps`, only the rows from the first to the last of these steps, which may be none, and no other file is
    opened. Raises `DataError` when there is no step yet, or when another version wrote the files.
    """
    if table not in ALL_TABLES:
        raise DataError(
            f"there is no table {table!r}", f"A run has the tables {', '.join(ALL_TABLES)}", "Ask for one of them"
        )
    if table in ACCOUNT_TABLES:
        return _read_account(run_dir, table)
    is_of_evaluations = table in EVALUATION_TABLES
    first, last = steps or (0, sys.maxsize)
    result = _read_counted(
        run_dir / (EVALUATION_FOLDER if is_of_evaluations else METRICS_FOLDER),
        table,
        lambda parts: tuple(part for part in parts if part.first <= last and part.last >= first),
    )
    if result is not None and steps is not None:
        result = result.filter(pc.and_(pc.greater_equal(result["step"], first), pc.less_equal(result["step"], last)))
    if result is None and is_of_evaluations:
        raise DataError(
            f"{run_dir} has no evaluation",
            "A run evaluates where evaluation.path names held-out sets, the first time before its first step",
            "Set evaluation.path, and resume the run or start another one",
        )
    if result is None:
        raise DataError(
            f"{run_dir} has no metrics",
            "A run directory holds metrics once its first step is finished",
            "Check the path (it is the run.dir of the run), or wait for the first step",
        )
    return result


def write_account(run_dir: Path, table: str, rows: Sequence[Row]) -> None:
    """Replace a table that has no steps, of rollout workers or of what they cost."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(list(rows), schema=ALL_TABLES[table].to_arrow()), sink)
    folder = run_dir / ACCOUNTS_FOLDER
    make_private_folder(folder)
    write_atomically(folder / f"{table}.parquet", sink.getvalue().to_pybytes())


def _read_account(run_dir: Path, table: str) -> pa.Table:
    path = run_dir / ACCOUNTS_FOLDER / f"{table}.parquet"
    try:
        with open_to_read(path) as file:
            account = pq.ParquetFile(file).read()
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path} cannot be read: {reason_of(error)}",
            "A run with rollout workers has it once `rollpacker report` has been asked about it",
            f"`rollpacker report {run_dir}` writes it",
        ) from error
    return _in_current_schema(path, ALL_TABLES[table].to_arrow(), account)


def read_last_steps(run_dir: Path, num_steps: int) -> list[Row]:
    """Read a run's newest rows of `steps`, at most so many, and none of the files of older steps.

    Raises as `read_table` does.
    """
    newest = _read_counted(
        run_dir / METRICS_FOLDER,
        "steps",
        lambda parts: tuple(part for part in parts if part.last > parts[-1].last - num_steps),
    )
    return [] if newest is None else newest.to_pylist()[-num_steps:]


def _read_counted(folder: Path, table: str, choose: Callable[[tuple[Part, ...]], tuple[Part, ...]]) -> pa.Table | None:
    """Read some of the parts that count at some moment during the call; None when none does."""
    manifest = load_manifest(folder)
    while manifest is not None and manifest.parts:
        try:
            result = read_parts(folder, table, choose(manifest.parts))
        except FileNotFoundError as error:
            newer = load_manifest(folder)
            if newer == manifest:
                raise DataError(
                    f"{error.filename or error} is missing, although {folder / MANIFEST} names it",
                    "Every part that the manifest names must be there",
                    "Restore the file, or copy the run directory again, as a whole",
                ) from error
        else:
            newer = load_manifest(folder)
            if newer is not None and newer.num_truncations == manifest.num_truncations:
                return result
        manifest = newer
    return None


def read_frame(run_dir: Path, table: str) -> pd.DataFrame:
    """Read one of a run's tables as `read_table` does; `attrs["units"]` maps each column to its unit."""
    frame: pd.DataFrame = read_table(run_dir, table).to_pandas()
    frame.attrs["units"] = {column.name: column.unit for column in ALL_TABLES[table].columns}
    return frame


def load_manifest(folder: Path) -> Manifest | None:
    """Read what counts in `<run.dir>/metrics`; None when nothing was written yet.

    Raises:
        DamagedTables: It is no manifest.
        UnreadableTables: It cannot be read now.
        DataError: Another version wrote it.
    """
    path = folder / MANIFEST
    try:
        text = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise (_no_manifest(path, reason_of(error)) if is_damage(error) else _unreadable(path, error)) from error
    try:
        plain = json.loads(text)
        _refuse_other_version(path, int(plain["schema_version"]))
        parts = tuple(Part(first=first, last=last) for first, last in plain["parts"])
        num_truncations = int(plain["num_truncations"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_manifest(path, str(error)) from error
    return Manifest(parts=parts, num_truncations=num_truncations)


def _no_manifest(path: Path, problem: str) -> DamagedTables:
    return DamagedTables(
        f"{path} is not readable as a manifest: {problem}",
        "It is written by the run and never by hand",
        "Resume the run: run.resume=auto makes it again from the parts that are whole",
    )


def read_parts(folder: Path, table_name: str, parts: Sequence[Part]) -> pa.Table:
    """Read some parts of a table.

    Raises:
        FileNotFoundError: One of them is gone.
        DamagedTables: One of them is no Parquet file.
        UnreadableTables: One of them cannot be read now.
        DataError: Another version wrote it.
    """
    schema = ALL_TABLES[table_name].to_arrow()
    tables = []
    for part in parts:
        path = folder / table_name / part.file_name
        try:
            with open_to_read(path) as file:
                table = pq.ParquetFile(file).read()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:
            if not is_damage(error):
                raise _unreadable(path, error) from error
            raise DamagedTables(
                f"{path} is not readable: {reason_of(error)}",
                "Parts are written by the run and never by hand",
                "Restore the file from a copy, or resume the run: run.resume=auto sets such parts aside",
            ) from error
        tables.append(_in_current_schema(path, schema, table))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _unreadable(path: Path, error: Exception) -> UnreadableTables:
    return UnreadableTables(
        f"{path} cannot be read: {reason_of(error)}",
        "The run wrote it, and it may be whole",
        "Correct that (its permissions, `ulimit -n`, the mount or the disk), then try again",
    )


def _in_current_schema(path: Path, schema: pa.Schema, table: pa.Table) -> pa.Table:
    """The table with the schema's units and descriptions; raises `DataError` where it was written with another one."""
    _refuse_other_version(path, int((table.schema.metadata or {}).get(VERSION_KEY, b"0")))
    if not table.schema.equals(schema):
        raise DataError(
            f"{path} has other columns, or of other types, than schema version {SCHEMA_VERSION} has",
            "Parts are written by the run and never by hand",
            "Restore the file from a copy",
        )
    return pa.Table.from_arrays(table.columns, schema=schema)


def _refuse_other_version(path: Path, version: int) -> None:
    if version != SCHEMA_VERSION:
        raise DataError(
            f"{path} was written with schema version {version}",
            f"This rollpacker reads version {SCHEMA_VERSION}",
            "Use the rollpacker that wrote it, or read the Parquet files with pandas",
        )
