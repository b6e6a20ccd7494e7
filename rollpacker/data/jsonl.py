"""Reads JSON lines from a user's file, and says exactly where a line is wrong.

Invariant: every record carries the number of its line, counted from 1 as editors do, and lines end at a newline
byte only (a JSON string may hold other separators, such as U+2028). Blank lines are skipped. Every failure is a
`DataError`.
"""

from __future__ import annotations

import codecs
import difflib
import json
import math
from typing import TYPE_CHECKING

from rollpacker.core.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

JsonObject = dict[str, object]

_MAX_SHOWN_CHARS = 60
"""How much of a wrong value a message repeats."""


def read_json_lines(path: Path, *, kind: str) -> Iterator[tuple[int, JsonObject]]:
    """Yield each line's number and object. `kind` names the file in messages, such as `prompt file`."""
    content = _read_bytes(path, kind).removeprefix(codecs.BOM_UTF8)
    if not content.strip():
        raise DataError(
            f"The {kind} {path} is empty",
            "Allowed: one JSON object per line",
            "Write at least one line, or name another file",
        )
    for number, raw_line in enumerate(content.split(b"\n"), start=1):
        if raw_line and not raw_line.isspace():
            yield number, _parse_line(raw_line, path, number)


def line_error(path: Path, number: int, problem: str, allowed: str, remedy: str) -> DataError:
    """Make the error of one line."""
    return DataError(f"{path}, line {number}: {problem}", allowed, remedy)


def read_identifier(record: JsonObject, path: Path, number: int) -> str:
    """Take the field `id`: a non-empty string, or a number, which becomes a string."""
    value = require_field(record, "id", path, number)
    if isinstance(value, str) and value.strip():
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        return str(value)
    raise line_error(
        path,
        number,
        f"`id` is {shown(value)}",
        "Allowed: a non-empty string or a number",
        "Give every line an id of its own",
    )


def require_field(record: JsonObject, name: str, path: Path, number: int) -> object:
    """Take a field that every line must have."""
    if name not in record:
        raise missing_field([name], record, path, number)
    return record[name]


def missing_field(names: Sequence[str], record: JsonObject, path: Path, number: int) -> DataError:
    """Make the error of a line that has none of these fields."""
    missing = " or ".join(f"`{name}`" for name in names)
    present = ", ".join(f"`{field}`" for field in record) or "none"
    remedy = f"Add {missing} to every line"
    for name in names:
        if nearest := difflib.get_close_matches(name, record, n=1):
            remedy = f"Rename `{nearest[0]}` to `{name}` in every line"
    return line_error(path, number, f"the field {missing} is missing", f"Fields of this line: {present}", remedy)


def refuse_lone_surrogates(name: str, value: object, path: Path, number: int) -> None:
    """Half of a surrogate pair is legal JSON, but no text: it could not be tokenized or written later."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise line_error(
            path,
            number,
            f"the field `{name}` holds half of a surrogate pair",
            "Allowed: complete Unicode characters",
            "Write the file again with whole characters",
        ) from None


def shown(value: object) -> str:
    """Show a JSON value in a message, cut when long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def _read_bytes(path: Path, kind: str) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"The {kind} {path} does not exist", "Allowed: a JSONL file", _nearest_name(path)) from None
    except IsADirectoryError:
        raise DataError(
            f"The {kind} {path} is a directory", "Allowed: a JSONL file", "Name a file in that directory"
        ) from None
    except OSError as error:
        raise DataError(
            f"The {kind} {path} cannot be read: {error.strerror}",
            "Allowed: a JSONL file that this user may read",
            "Check the path and its permissions",
        ) from error


def _nearest_name(path: Path) -> str:
    if not path.parent.is_dir():
        return f"Check the path: the directory {path.parent} does not exist either"
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return "Check the path"
    nearest = difflib.get_close_matches(path.name, names, n=1)
    return f"Did you mean {path.parent / nearest[0]}?" if nearest else f"Check the path; {path.parent} has no such name"


def _parse_line(raw_line: bytes, path: Path, number: int) -> JsonObject:
    try:
        value = json.loads(raw_line.decode())
    except UnicodeDecodeError as error:
        raise line_error(
            path,
            number,
            f"byte {error.start + 1} (0x{raw_line[error.start]:02x}) is not UTF-8",
            "Allowed: text in UTF-8",
            "Convert the file, for example with `iconv -f latin1 -t utf-8`",
        ) from None
    except json.JSONDecodeError as error:
        raise line_error(
            path,
            number,
            f"broken JSON at column {error.colno}: {error.msg}",
            "Allowed: one JSON object per line",
            "Repair the line; a file with one large JSON array has to be rewritten as lines",
        ) from None
    except (ValueError, RecursionError) as error:
        # Legal JSON that Python refuses: an integer of thousands of digits, or thousands of nested brackets.
        raise line_error(
            path, number, f"the JSON cannot be read: {error}", "Allowed: one JSON object per line", "Repair the line"
        ) from None
    if not isinstance(value, dict):
        raise line_error(
            path,
            number,
            f"the line is {shown(value)}, not an object",
            "Allowed: one JSON object per line, in curly brackets",
            "Rewrite the file with one object per line",
        )
    if b"\\ud" in raw_line or b"\\uD" in raw_line:
        for name, field in value.items():
            refuse_lone_surrogates(name, field, path, number)
    return value
