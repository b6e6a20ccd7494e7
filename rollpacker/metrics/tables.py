"""Writes the tables of a run step by step as Parquet, and reads them back at any time.

    <run.dir>/metrics/manifest.json                     the steps that count, and in which parts they lie
    <run.dir>/metrics/steps/steps-000000-000063.parquet 64 steps in one file, once they are complete
    <run.dir>/metrics/steps/step-000064.parquet         one step; the same names in domains/, responses/ ...

Invariant: the manifest names complete parts only, each step in exactly one of them, and it changes by one atomic
rename. So a step appears in all tables at once, and a kill at any point leaves the tables as they were after
some step. A part that the manifest does not name does not count; the next writer deletes it.

A reader holds no lock. A part that it was told of may be gone before it is opened, because 64 parts became one or a
resumed run took steps back. Then the manifest has changed too, and the reader starts again from there.

Files of old steps are merged because cluster file systems count files: 10,000 steps make 4 x 220 files, not 40,000.
(Whoever reads a folder without the manifest sees each step once as well, but for the milliseconds in which a merged
file stands beside its 64 sources, or after a kill right then.)
"""

from __future__ import annotations

import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Integral
from operator import itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollpacker.core.errors import DataError, InternalError
from rollpacker.metrics.files import make_durable, remove_temporaries, storage_errors, write_atomically
from rollpacker.metrics.schemas import SCHEMA_VERSION, TABLES, VERSION_KEY
from rollpacker.paths import open_to_read, read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    import pandas as pd

    Row = Mapping[str, object]

METRICS_FOLDER = "metrics"
"""Below the run directory."""

MANIFEST = "manifest.json"


class DamagedTables(DataError):
    """What a run wrote cannot be read any more."""


STEPS_PER_MERGED_PART = 64
"""Keeps the number of files small; merging 64 steps of 2,000 responses takes the thread about half a second."""


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


class MetricsWriter:
    """The one writer of a run's tables.

    Opening a folder continues where its manifest ends, and deletes what a killed writer left half done. A thread reads
    and encodes the parts that are to be merged; files and the manifest change only within the calls below.
    """

    def __init__(self, folder: Path) -> None:
        """Open or create the tables in `folder`, which is `<run.dir>/metrics`."""
        self.folder = folder
        self._schemas = {name: table.to_arrow() for name, table in TABLES.items()}
        self._manifest = load_manifest(folder) or Manifest()
        self._unsynced: list[Path] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics-merge")
        self._merge: _Merge | None = None
        for table in TABLES:
            with storage_errors(folder / table):
                (folder / table).mkdir(parents=True, exist_ok=True)
            remove_temporaries(folder / table)
        remove_temporaries(folder)
        self._remove_uncounted_parts()
        pa.array(())  # its first use imports pandas, which the first step should not have to wait for

    @property
    def last_step(self) -> int | None:
        """The last step that the tables hold."""
        return self._manifest.last_step

    def write_step(self, step: int, rows: Mapping[str, Sequence[Row]]) -> None:
        """Add the rows of one step to every table; a table may get no rows, but each must be named.

        Rows that do not fit the schema raise `InternalError` and write nothing.
        """
        if self.last_step is not None and step <= self.last_step:
            raise InternalError(
                f"step {step} cannot be written to {self.folder}: step {self.last_step} is there already",
                "Steps are written once, in ascending order",
                "Call truncate_after before a resumed run writes its first step",
            )
        if rows.keys() != TABLES.keys():
            raise InternalError(
                f"rows for the tables {sorted(rows)} were given for step {step}",
                f"A step has rows, possibly none, for each of {sorted(TABLES)}",
                "Fix the caller of write_step",
            )
        part = Part(first=step, last=step)
        tables = {name: _to_arrow(name, self._schemas[name], table_rows) for name, table_rows in rows.items()}
        try:
            for name, table in tables.items():
                self._write_part(name, part, _to_parquet(table, "snappy"))
            self._commit((*self._manifest.parts, part))
        except BaseException:
            self._manifest = load_manifest(self.folder) or Manifest()  # what counts is decided on disk
            self._remove_uncounted_parts()
            raise
        self._advance_merge(can_wait=False)

    def truncate_after(self, step: int) -> None:
        """Take back every step later than `step`: a resumed run will make them again. -1 takes all of them back."""
        before = self._manifest.parts
        kept = tuple(part for part in before if part.last <= step)
        if len(kept) == len(before):
            return
        if self._merge is not None:
            self._merge.encoded.result()
            self._merge = None
        cut = before[len(kept)]
        if cut.first <= step:
            kept = (*kept, self._cut(cut, step))
        self._commit(kept, num_truncations=self._manifest.num_truncations + 1)
        self._remove_uncounted_parts()

    def make_durable(self) -> None:
        """Bring everything written since the last call to the disk: call it before a checkpoint that counts on it."""
        make_durable([*self._unsynced, self.folder / MANIFEST])
        self._unsynced.clear()

    def close(self) -> None:
        """Merge what is due and end the thread. Without it the tables are whole too, in more files."""
        try:
            self._advance_merge(can_wait=True)
        finally:
            self._thread.shutdown()

    def _write_part(self, table_name: str, part: Part, parquet: pa.Buffer) -> None:
        path = self.folder / table_name / part.file_name
        write_atomically(path, memoryview(parquet))
        self._unsynced.append(path)

    def _commit(self, parts: tuple[Part, ...], *, num_truncations: int | None = None) -> None:
        if num_truncations is None:
            num_truncations = self._manifest.num_truncations
        manifest = Manifest(parts=parts, num_truncations=num_truncations)
        write_atomically(self.folder / MANIFEST, manifest.to_json())
        self._manifest = manifest

    def _advance_merge(self, *, can_wait: bool) -> None:
        """Finish the merge under way and begin the next one that is due; return when it would have to wait."""
        while True:
            if self._merge is None:
                sources = self._next_merge()
                if not sources:
                    return
                encoded = self._thread.submit(_encode_merged, self.folder, sources)
                self._merge = _Merge(sources=sources, encoded=encoded)
            if not (can_wait or self._merge.encoded.done()):
                return
            self._finish_merge(self._merge)
            self._merge = None

    def _next_merge(self) -> tuple[Part, ...]:
        single = tuple(part for part in self._manifest.parts if part.first == part.last)
        return single[:STEPS_PER_MERGED_PART] if len(single) >= STEPS_PER_MERGED_PART else ()

    def _finish_merge(self, merge: _Merge) -> None:
        merged = Part(first=merge.sources[0].first, last=merge.sources[-1].last)
        for name, parquet in merge.encoded.result().items():
            self._write_part(name, merged, parquet)
        parts = [part for part in self._manifest.parts if part not in merge.sources]
        self._commit(tuple(sorted([*parts, merged], key=lambda part: part.first)))
        for part in merge.sources:
            for name in TABLES:
                _remove(self.folder / name / part.file_name)

    def _cut(self, part: Part, step: int) -> Part:
        shortened = Part(first=part.first, last=step)
        for name in TABLES:
            table = read_parts(self.folder, name, (part,))
            table = table.filter(pc.less_equal(table["step"], step))
            self._write_part(name, shortened, _to_parquet(table, "zstd"))
        return shortened

    def _remove_uncounted_parts(self) -> None:
        counted = {part.file_name for part in self._manifest.parts}
        for name in TABLES:
            for path in sorted((self.folder / name).glob("step*.parquet")):
                if path.name not in counted:
                    _remove(path)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """Single-step parts on their way into one file per table."""

    sources: tuple[Part, ...]
    encoded: Future[dict[str, pa.Buffer]]


def read_table(run_dir: Path, table: str, steps: tuple[int, int] | None = None) -> pa.Table:
    """Read one of a run's tables, finished or not: all steps up to some moment during the call, each once, in order.

    Columns that an older version did not write are null, with a warning. With `steps`, only the rows from the first to
    the last of these steps, and no other file is opened. Raises `DataError` when there is no (such) step yet, or when a
    newer version wrote the files.
    """
    if table not in TABLES:
        raise DataError(
            f"there is no table {table!r}", f"A run has the tables {', '.join(TABLES)}", "Ask for one of them"
        )
    first, last = steps or (0, sys.maxsize)
    result = _read_counted(
        run_dir / METRICS_FOLDER,
        table,
        lambda parts: tuple(part for part in parts if part.first <= last and part.last >= first),
    )
    if result is not None and steps is not None:
        result = result.filter(pc.and_(pc.greater_equal(result["step"], first), pc.less_equal(result["step"], last)))
    if result is None:
        raise DataError(
            f"{run_dir} has no metrics",
            "A run directory holds metrics once its first step is finished",
            "Check the path (it is the run.dir of the run), or wait for the first step",
        )
    return result


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


def read_frame(run_dir: Path, table: str, steps: tuple[int, int] | None = None) -> pd.DataFrame:
    """Read one of a run's tables as `read_table` does; `attrs["units"]` maps each column to its unit."""
    frame: pd.DataFrame = read_table(run_dir, table, steps).to_pandas()
    frame.attrs["units"] = {column.name: column.unit for column in TABLES[table].columns}
    return frame


def _to_arrow(table_name: str, schema: pa.Schema, rows: Sequence[Row]) -> pa.Table:
    if not rows:
        return schema.empty_table()
    names = schema.names
    try:
        columns = tuple(zip(*map(itemgetter(*names), rows), strict=True))
    except KeyError as error:
        raise _wrong_columns(table_name, names, rows) from error
    if set(map(len, rows)) != {len(names)}:
        raise _wrong_columns(table_name, names, rows)
    arrays = []
    for field, values in zip(schema, columns, strict=True):
        try:
            if field.type == pa.int64():
                _refuse_fractions(values)
            array = pa.array(values, type=field.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InternalError(
                f"column {field.name} of table {table_name} got a value of another type: {error}",
                f"It holds {field.type}{' or null' if field.nullable else ''}",
                "Fix the caller of write_step",
            ) from error
        if array.null_count and not field.nullable:
            raise InternalError(
                f"column {field.name} of table {table_name} got None in {array.null_count} of {len(rows)} rows",
                f"It holds {field.type}, never null",
                "Fix the caller of write_step",
            )
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema)


def _refuse_fractions(values: Sequence[object]) -> None:
    """Raise for what is no integer: pyarrow would silently cut 1.5 to 1."""
    for kind in set(map(type, values)):
        if not issubclass(kind, Integral | NoneType):
            raise pa.ArrowTypeError(f"Expected integer, got {kind.__name__}")


def _wrong_columns(table_name: str, names: Sequence[str], rows: Sequence[Row]) -> InternalError:
    row = next(row for row in rows if row.keys() != set(names))
    missing = [name for name in names if name not in row]
    unknown = [name for name in row if name not in names]
    parts = [f"lacks {', '.join(missing)}"] if missing else []
    parts += [f"has the unknown {', '.join(unknown)}"] if unknown else []
    return InternalError(
        f"a row of table {table_name} {' and '.join(parts)}",
        f"Its columns are {', '.join(names)}",
        "Fix the caller of write_step, or the schema in rollpacker/metrics/schemas.py",
    )


def load_manifest(folder: Path) -> Manifest | None:
    """Read what counts in `<run.dir>/metrics`; None when nothing was written yet.

    Raises:
        DamagedTables: It is no manifest.
        DataError: A newer version wrote it.
    """
    path = folder / MANIFEST
    try:
        text = read_bytes(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _no_manifest(path, error.strerror or str(error)) from error
    try:
        plain = json.loads(text)
        version = int(plain["schema_version"])
        parts = tuple(Part(first=first, last=last) for first, last in plain["parts"])
        num_truncations = int(plain["num_truncations"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _no_manifest(path, str(error)) from error
    _refuse_newer(path, version)
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
        DataError: A newer version wrote it.
    """
    schema = TABLES[table_name].to_arrow()
    tables = []
    for part in parts:
        path = folder / table_name / part.file_name
        try:
            with open_to_read(path) as file:
                table = pq.ParquetFile(file).read()
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError) as error:  # pyarrow reports a broken footer as OSError
            raise DamagedTables(
                f"{path} is not readable: {getattr(error, 'strerror', None) or error}",
                "Parts are written by the run and never by hand",
                "Restore the file from a copy, or resume the run: run.resume=auto sets such parts aside",
            ) from error
        tables.append(_in_current_schema(path, schema, table))
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _in_current_schema(path: Path, schema: pa.Schema, table: pa.Table) -> pa.Table:
    if table.schema.equals(schema, check_metadata=True):
        return table
    version = int((table.schema.metadata or {}).get(VERSION_KEY, b"0"))
    _refuse_newer(path, version)
    absent = [name for name in schema.names if name not in table.column_names]
    if absent:
        warnings.warn(
            f"{path} was written with schema version {version}, before there were the columns {', '.join(absent)}: "
            "they are null",
            stacklevel=2,
        )
    arrays = [
        pa.nulls(len(table), field.type) if field.name in absent else table[field.name].cast(field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _encode_merged(folder: Path, sources: Sequence[Part]) -> dict[str, pa.Buffer]:
    return {name: _to_parquet(read_parts(folder, name, sources), "zstd") for name in TABLES}


def _to_parquet(table: pa.Table, compression: Literal["snappy", "zstd"]) -> pa.Buffer:
    """Encode a table. Only text repeats often enough to be worth a dictionary; without others it is half the work."""
    text_columns = [field.name for field in table.schema if field.type == pa.string()]
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression=compression, use_dictionary=text_columns)
    return buffer.getvalue()


def _remove(path: Path) -> None:
    with storage_errors(path):
        path.unlink(missing_ok=True)


def _refuse_newer(path: Path, version: int) -> None:
    if version > SCHEMA_VERSION:
        raise DataError(
            f"{path} was written with schema version {version}",
            f"This rollpacker reads versions up to {SCHEMA_VERSION}",
            "Install the rollpacker that wrote it, or a newer one",
        )
