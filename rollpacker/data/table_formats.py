"""Reads the rows of tables: Parquet, Arrow (as `datasets` saves it) and CSV.

Invariant: a row is an object of JSON values, so that prompts and rewards see the same whatever the file was. Times and
decimals become texts; bytes become text where they are UTF-8, and null where not, as images are; 0.1 is 0.1 in a column
of float32, too, also in lists, maps and objects (but not in dictionary-encoded columns and list views). Every failure
is a `DataError` that names the file, and the row where there is one.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollpacker.core.errors import DataError
from rollpacker.data.jsonl import MAX_LINE_BYTES, JsonLine, reading, remedy_of
from rollpacker.paths import open_to_read
from rollpacker.protocols.references import TableRow

_FORMATS = {".parquet": "Parquet", ".arrow": "Arrow", ".csv": "CSV"}
_BEGINNINGS = {b"PAR1": "Parquet", b"ARRO": "Arrow"}
"""The first bytes of files that are called otherwise."""
_BATCH_ROWS = 1024
"""Rows that are Python objects at a time."""
_COMMAS = "Allowed: in each row as many values as the first line has names, separated by commas"
_OTHER_SEPARATORS = ";\t|"
_MAX_FIELD_CHARS = MAX_LINE_BYTES
"""Of a field of CSV: as much as a line of JSON may have."""


def table_format(path: Path) -> str | None:
    """The format of a table, by its name or its first bytes; None of a file that is no table, or cannot be read."""
    if form := _FORMATS.get(path.suffix.lower()):
        return form
    try:
        with open_to_read(path) as file:
            return _BEGINNINGS.get(file.read(4))
    except OSError:
        return None


def read_table(path: Path, *, kind: str) -> Iterator[JsonLine]:
    """Yield the rows of a table. `kind` names the file in messages, such as `prompt file`."""
    form, number = table_format(path), 0
    with reading(path, kind):
        try:
            for number, row in enumerate(_csv_rows(path) if form == "CSV" else _arrow_rows(path, form), start=1):
                yield JsonLine(TableRow(path=path, number=number), row)
        except (ValueError, csv.Error, NotImplementedError) as error:
            raise _unreadable(error, path, kind, form, number) from error
        except OverflowError as error:
            raise DataError(
                f"The {kind} {path} has a time that Python cannot hold" + (f", after row {number}" if number else ""),
                "Allowed: times of the years 1 to 9999",
                "Correct it, or leave out the column",
            ) from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise _broken(path, kind, f"cannot be read as {form}: {error}") from error  # pyarrow's, of damaged data
    if not number:
        raise DataError(f"The {kind} {path} is empty", "Allowed: at least one row", "Name another file")


def _unreadable(error: Exception, path: Path, kind: str, form: str | None, number: int) -> DataError:
    """Make the error of a table by what csv, Python or pyarrow, whose errors are of ValueError, says after a row."""
    row = TableRow(path=path, number=number + 1)
    if str(error).startswith("field larger than field limit"):
        return DataError(
            f"{row}: a field has more than {_MAX_FIELD_CHARS:,} characters",
            "Allowed: shorter ones, since each is held as a whole",
            "Shorten it; or close its quotation mark, if one is left open",
        )
    if isinstance(error, csv.Error):
        return _ragged(row, str(error))
    if "zoneinfo" in str(error):
        return DataError(
            f"The {kind} {path} has a time zone that Python does not find",
            "Allowed: those of the tz database, such as UTC or Europe/Rome",
            "Install the database (`pip install tzdata`), or convert the column to UTC",
        )
    problem = f"cannot be read as {form}{f' after row {number}' if number else ''}: {error}"
    if form == "CSV" and isinstance(error, UnicodeDecodeError):
        return DataError(f"The {kind} {path} {problem}", "Allowed: text in UTF-8", remedy_of(error))
    return _broken(path, kind, problem)


def _broken(path: Path, kind: str, problem: str) -> DataError:
    return DataError(
        f"The {kind} {path} {problem.splitlines()[0]}",
        "Allowed: a whole file of the format that its name ends with (.parquet, .arrow, .csv; all others: JSON lines)",
        "Copy or download it again, and compare its size",
    )


def _csv_rows(path: Path) -> Iterator[dict[str, object]]:
    """Every value is a text, and the first line has the names."""
    csv.field_size_limit(_MAX_FIELD_CHARS)  # of this process
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        names = reader.fieldnames or ()
        _refuse_repeated(path, names)
        if len(names) == 1 and (separators := set(names[0]) & set(_OTHER_SEPARATORS)):
            raise DataError(
                f"{path} has one column, {names[0]!r}, whose name has {min(separators)!r}",
                _COMMAS,
                "Save it with commas",
            )
        for number, row in enumerate(reader, start=1):
            if None in row or None in row.values():
                raise _ragged(
                    TableRow(path=path, number=number),
                    f"the row has {'more' if None in row else 'fewer'} values than the {len(names)} columns",
                )
            yield dict(row)


def _ragged(row: TableRow, problem: str) -> DataError:
    return DataError(
        f"{row}: {problem}", _COMMAS, "Quote values that have commas or line breaks; double the quotes in such values"
    )


def _arrow_rows(path: Path, form: str | None) -> Iterator[dict[str, Any]]:
    for batch in _batches(path, form):
        _refuse_repeated(path, batch.schema.names)
        unplain = [column.name for column in batch.schema if not _is_plain(column.type)]
        for row in _with_shortest_decimals(batch).to_pylist():
            yield row | {name: _plain(row[name]) for name in unplain}


def _refuse_repeated(path: Path, columns: Iterable[str]) -> None:
    """Refuse columns of the same name, of which a row could have one; those without a name are for no one.

    Each is a field of the row, which templates, rewards and environments may read, whether or not a prompt needs it.
    """
    for name, number in Counter(columns).items():
        if name.strip() and number > 1:
            raise DataError(
                f"{path} has {number} columns called `{name}`",
                "Allowed: a name for each column that no other one has; templates, rewards and environments get all",
                "Rename them, or delete all but one",
            )


def _with_shortest_decimals(batch: Any) -> Any:
    """Read float32 as its shortest text: Python would make 0.10000000149011612 of 0.1."""
    import pyarrow as pa

    as_texts, as_numbers = (
        pa.schema([field.with_type(_retyped(field.type, kind)) for field in batch.schema])
        for kind in (pa.string(), pa.float64())
    )
    return batch if as_texts.equals(batch.schema) else batch.cast(as_texts).cast(as_numbers)


def _retyped(kind: Any, number: Any) -> Any:
    """A type with another one for float32, also in lists, maps and objects."""
    import pyarrow as pa

    if pa.types.is_float32(kind):
        return number
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        values = kind.value_field.with_type(_retyped(kind.value_type, number))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(values, kind.list_size)
        return pa.large_list(values) if pa.types.is_large_list(kind) else pa.list_(values)
    if pa.types.is_map(kind):
        key, item = (each.with_type(_retyped(each.type, number)) for each in (kind.key_field, kind.item_field))
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_retyped(field.type, number)) for field in kind])
    return kind


def _batches(path: Path, form: str | None) -> Iterator[Any]:
    import pyarrow as pa

    if form == "Parquet":
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS)
        return
    with pa.memory_map(str(path)) as source:
        try:
            indexed = pa.ipc.open_file(source)
        except pa.ArrowInvalid:  # `datasets` saves streams, which have no index
            source.seek(0)
            yield from pa.ipc.open_stream(source)
        else:
            yield from (indexed.get_batch(index) for index in range(indexed.num_record_batches))


def _is_plain(kind: Any) -> bool:
    import pyarrow as pa

    types = pa.types
    if kind.num_fields:
        return not types.is_map(kind) and all(_is_plain(kind.field(index).type) for index in range(kind.num_fields))
    checks = (types.is_boolean, types.is_integer, types.is_floating, types.is_string, types.is_large_string)
    return any(check(kind) for check in (*checks, types.is_null))


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes():
            with suppress(UnicodeDecodeError):
                return value.decode()
            return None
        case dict():
            return {str(name): _plain(each) for name, each in value.items()}
        case list() | tuple():
            return [_plain(each) for each in value]
        case _:
            return str(value)
