"""Writes the tables of a run step by step. `tables` says how they lie on the disk, and reads them.

The thread reads and encodes the parts that are to be merged; files and the manifest change only within the calls.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from numbers import Integral
from operator import itemgetter
from types import NoneType
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rollpacker.core.errors import InternalError
from rollpacker.metrics.files import make_durable, remove_temporaries, storage_errors, write_atomically
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.tables import MANIFEST, Manifest, Part, load_manifest, read_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from rollpacker.metrics.columns import TableSchema
    from rollpacker.metrics.tables import Row

STEPS_PER_MERGED_PART = 64
"""Keeps the number of files small; merging 64 steps of 2,000 responses takes the thread about half a second."""


class MetricsWriter:
    """The one writer of a run's tables.

    Opening a folder continues where its manifest ends, and deletes what a killed writer left half done.
    """

    def __init__(self, folder: Path, tables: Mapping[str, TableSchema] = TABLES) -> None:
        """Open or create some tables in `folder`, such as `<run.dir>/metrics`; they have the same steps."""
        self.folder = folder
        self._schemas = {name: table.to_arrow() for name, table in tables.items()}
        self._manifest = load_manifest(folder) or Manifest()
        self._unsynced: list[Path] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics-merge")
        self._merge: _Merge | None = None
        for table in tables:
            with storage_errors(folder / table):
                (folder / table).mkdir(parents=True, exist_ok=True)
            remove_temporaries(folder / table)
        remove_temporaries(folder)
        self._remove_uncounted_parts()
        _make_first_array()

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
        if rows.keys() != self._schemas.keys():
            raise InternalError(
                f"rows for the tables {sorted(rows)} were given for step {step}",
                f"A step has rows, possibly none, for each of {sorted(self._schemas)}",
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
        """Write everything since the last call through to the disk: call it before a checkpoint that depends on it."""
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
                encoded = self._thread.submit(_encode_merged, self.folder, tuple(self._schemas), sources)
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
            for name in self._schemas:
                _remove(self.folder / name / part.file_name)

    def _cut(self, part: Part, step: int) -> Part:
        kept: dict[str, pa.Table] = {}
        for name in self._schemas:
            table = read_parts(self.folder, name, (part,))
            kept[name] = table.filter(pc.less_equal(table["step"], step))
        shortened = Part(first=part.first, last=max(pc.max(table["step"]).as_py() or 0 for table in kept.values()))
        for name, table in kept.items():
            self._write_part(name, shortened, _to_parquet(table, "zstd"))
        return shortened

    def _remove_uncounted_parts(self) -> None:
        counted = {part.file_name for part in self._manifest.parts}
        for name in self._schemas:
            for path in sorted((self.folder / name).glob("step*.parquet")):
                if path.name not in counted:
                    _remove(path)


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError(fullname)


def _make_first_array() -> None:
    """Have pyarrow find no pandas when it looks for it, once: it would load it, for a second of a core.

    It tells columns of pandas from lists with it; nobody gives such columns here. What needs pandas itself, such as
    `to_pandas`, finds it later.
    """
    finder = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array(())
    finally:
        sys.meta_path.remove(finder)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Merge:
    """Single-step parts on their way into one file per table."""

    sources: tuple[Part, ...]
    encoded: Future[dict[str, pa.Buffer]]


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


def _encode_merged(folder: Path, tables: Sequence[str], sources: Sequence[Part]) -> dict[str, pa.Buffer]:
    return {name: _to_parquet(read_parts(folder, name, sources), "zstd") for name in tables}


def _to_parquet(table: pa.Table, compression: Literal["snappy", "zstd"]) -> pa.Buffer:
    """Encode a table. Only text repeats often enough to be worth a dictionary; without others it is half the work."""
    text_columns = [field.name for field in table.schema if field.type == pa.string()]
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression=compression, use_dictionary=text_columns)
    return buffer.getvalue()


def _remove(path: Path) -> None:
    with storage_errors(path):
        path.unlink(missing_ok=True)
