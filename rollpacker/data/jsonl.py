"""Reads JSON lines from a user's file, with exact places of errors; the object of a line is also that of a table's row.

Invariant: every record carries its line, numbered from 1 as editors do, and lines end at a newline byte only (a JSON
string may hold other separators, such as U+2028). Blank lines are skipped. One line is held at a time, since a file of
test cases may be larger than memory. Every failure is a `DataError`.
"""

from __future__ import annotations

import codecs
import difflib
import hashlib
import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.config.keys import nearest
from rollpacker.config.sections.data import PROMPT_FIELDS
from rollpacker.config.sections.evaluation import HeldOutFile
from rollpacker.config.words import in_hydra
from rollpacker.core.errors import DataError
from rollpacker.paths import nearest_beside, special_kind
from rollpacker.protocols.references import FileLine, Place

if TYPE_CHECKING:
    from rollpacker.config.sections.data import PromptFile

MAX_LINE_BYTES = 64 << 20
"""Of one line, which is held as a whole: the largest test cases of public sets take a few MB."""
MAX_NAME_CHARS = 1_000
"""Of an id or a domain: a path or a hash fits, and they are held and written many times."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_ALLOWED = "Allowed: a file of JSON lines, Parquet, Arrow or CSV"
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh")
"""The first bytes of files of gzip, zstd, xz and bzip2."""
_ZIP = b"PK\x03\x04"
"""Of spreadsheets, too."""
_BYTE_ORDERS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""The first bytes of texts; those of UTF-32 may begin as those of UTF-16 do."""
_MAX_SHOWN_CHARS = 60
"""How much of a wrong value or of a name a message repeats."""
_MOST_LISTED = 20
"""Names of fields in a message; published data sets have some ten."""
_USUAL_NAMES = {
    "prompt": ("question", "problem", "instruction", "query", "input"),
    "ground_truth": ("answer", "solution", "final_answer", "expected_answer", "label"),
}
"""What published data sets call our fields, the likeliest first."""
_REFERENCES = ("ground_truth", "test_cases", "rubric", "reference_answer")
"""What responses are scored by."""


@dataclass(frozen=True, slots=True, eq=False)
class JsonLine:
    """The object of one line or of one row of a table, and its errors."""

    line: Place
    fields: dict[str, object]
    columns: Mapping[str, str] = field(default_factory=dict)
    """Fields that the file calls otherwise, by our names."""
    made: frozenset[str] = frozenset()
    """Fields that the file does not have, or has as null."""
    file: PromptFile | None = None
    """Whose settings say how its rows are read; None of a file that has none."""

    def error(self, problem: str, allowed: str, remedy: str) -> DataError:
        """Make an error that names the place, and a field as the file does."""
        for name, column in self.columns.items():
            problem = problem.replace(f"`{name}`", f"`{column}` (as `{name}`)")
        return DataError(f"{self.line}: {problem}", allowed, remedy)

    def with_columns(self, columns: Mapping[str, str]) -> JsonLine:
        """Give the fields our names.

        Args:
            columns: Our name and the file's, in which dots lead into a field.

        Of `prompt` and `messages`, the one that is named counts: the file's other one is dropped.

        Raises:
            DataError: The file has no such column.
        """
        named = {name: self._find(name, column) for name, column in columns.items()}
        taken = set(columns.values()) - set(columns)
        texts = {"prompt", "messages"}
        if texts & set(columns):
            taken |= texts - set(columns)
        fields = {name: value for name, value in self.fields.items() if name not in taken} | named
        line = replace(self.line, columns=tuple(columns.items())) if isinstance(self.line, FileLine) else self.line
        return replace(self, line=line, fields=fields, columns=columns)

    def _find(self, name: str, column: str) -> object:
        if column in self.fields:
            return self.fields[column]
        found: object = self.fields
        parts = column.split(".")
        for depth, part in enumerate(parts):
            if found is None:
                return None
            if not isinstance(found, dict) or part not in found:
                raise self._no_column(name, column, ".".join(parts[:depth]), found)
            found = found[part]
        return found

    def _no_column(self, name: str, column: str, above: str, found: object) -> DataError:
        """Make the error of a column that is not there; `found` is what `above`, the part of its path that is, has."""
        problem = f"there is no column `{column}`, which is to be `{name}`"
        if not isinstance(found, dict):
            return self.error(
                f"{problem}: `{above}` is {shown(found)}",
                "Allowed: a dot that leads into an object",
                f"Write `{above}` as an object, or name another column",
            )
        usual = None if above else usual_column(name, found)
        close = [usual] if usual else nearest(column.removeprefix(f"{above}."), found)
        path = f"{above}.{close[0]}" if above and close else "".join(close)
        return self.error(
            f"{problem}{f': `{above}` has no such field' if above else ''}",
            f"{'Fields' if above else 'Columns'}: {_listed(found)}",
            f"Write {{{name}: {path}}}" if close else "Correct `columns`",
        )

    def advice(self, key: str, value: object) -> str:
        """Say how a setting of its file is made: what `data` has is neither of held-out files nor of those with own."""
        assert self.file is not None
        entry = f"`{key}: {_in_yaml(value)}` to the entry of {self.file.written}"
        if isinstance(self.file, HeldOutFile):
            return f"Add {entry} in evaluation.path"
        setting = f"Set {shlex.quote(f'data.{key}={in_hydra(value)}')}"
        may_be_own = getattr(self.file, key)
        return f"{setting} (add {entry} in data.path where that has its own)" if may_be_own else setting

    def identifier(self) -> str:
        """Take the field `id`: a non-empty string, or a number, which becomes a string."""
        value = self.require("id")
        if isinstance(value, str) and value.strip():
            self.refuse_unprintable("id", value)
            return value
        if type(value) is int or (isinstance(value, float) and math.isfinite(value)):
            return str(value)
        raise self.error(
            f"`id` is {shown(value)}", "Allowed: a non-empty string or a number", "Give every line an id of its own"
        )

    def refuse_unprintable(self, name: str, value: str) -> None:
        """Refuse a name that every table, message and figure about the prompt could not show."""
        if len(value) > MAX_NAME_CHARS or _CONTROL.search(value):
            raise self.error(
                f"`{name}` is {shown(value)}, of {len(value):,} characters",
                f"Allowed: {MAX_NAME_CHARS:,} characters, none of them a line break or another control character",
                f"Shorten `{name}`, or take out what cannot be printed",
            )

    def require(self, name: str) -> object:
        """Take a field that every line must have."""
        if name not in self.fields:
            raise self.missing([name])
        return self.fields[name]

    def missing(self, *wanted: Sequence[str], remedy: str = "") -> DataError:
        """Make the error of a line that has none of some fields.

        Args:
            wanted: Of each of these the line needs one field.
            remedy: Where another one than the names of fields is meant.
        """
        problems = []
        for names in wanted:
            blank = "".join(f"; `{name}` is {shown(self.fields[name])}" for name in names if name in self.fields)
            problems.append(f"the field {_either(names)} is missing{blank}")
        present = [name for name in self.fields if name not in self.made]
        written = [self.columns.get(name, name) for name in present]
        allowed = f"Fields of this line: {_listed(written)}"
        if len(present) > _MOST_LISTED and all(isinstance(self.fields[name], dict | list) for name in present):
            allowed += "; a file that is one object of all its rows has to be rewritten as one object per line"
        return self.error("; ".join(problems), allowed, remedy or self._remedy(wanted))

    def _remedy(self, wanted: Sequence[Sequence[str]]) -> str:
        remedies, columns, changes = list[str](), dict[str, str](), list[str]()
        for names in wanted:
            name, column = self._likely_column(names)
            if name == "domain" and column is None and self.file is not None:
                remedies.append(f"{self.advice('domain', 'math')} (or another name), for rows without one")
                continue
            columns[name] = column or "COLUMN"
            changes.append(f"rename `{column}` to `{name}`" if column else f"add {_either(names)}")
        if self.file is None:
            change = " and ".join(changes)
            return f"{change[0].upper()}{change[1:]} in every line"
        if columns.keys() & {"prompt", "messages"} and not self.fields.keys() & set(_REFERENCES):
            name, column = self._likely_column(["ground_truth"])
            columns |= {name: column} if column else {}
        if columns:
            remedies.append(f"{self.advice('columns', {**self.columns, **columns})}, or {' and '.join(changes)}")
        return ". ".join(remedies)

    def _likely_column(self, names: Sequence[str]) -> tuple[str, str | None]:
        """One of these fields, and what the line calls it by its name and its value; None where nothing is like it."""
        given = {name.lower(): name for name in self.fields}
        for name in names:
            if usual := usual_column(name, given):
                return name, given[usual]
        if misspelt := self.misspelt(names, similarity=0.6):
            return misspelt[1], misspelt[0]
        known = {*PROMPT_FIELDS, *self.made, *(given.get(name) for name in _USUAL_NAMES["ground_truth"])}
        others = {name: value for name, value in self.fields.items() if name not in known}
        if "prompt" in names:
            for name, value in others.items():
                if isinstance(value, list) and value and all(_is_message(each) for each in value):
                    return "messages", name
            texts = [name for name, value in others.items() if isinstance(value, str) and value]
            return "prompt", texts[0] if len(texts) == 1 else None
        return names[0], None

    def misspelt(self, names: Sequence[str], similarity: float) -> tuple[str, str] | None:
        """Find a field that is called almost as one of these, and the name that was meant."""
        others = [each for each in self.fields if each not in names]
        for name in names:
            if close := difflib.get_close_matches(name, others, n=1, cutoff=similarity):
                return close[0], name
        return None

    def parse_text(self, name: str, text: str, allowed: str, remedy: str) -> object:
        """Parse the JSON in a field that is a text, as converted data sets often have it."""
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self.error(f"`{name}` is a string that holds no JSON: {error}", allowed, remedy) from None
        if "\\u" in text:
            self.refuse_lone_surrogates(name, value)
        return value

    def refuse_lone_surrogates(self, name: str, value: object) -> None:
        """Half of a surrogate pair is legal JSON, but no text: it could not be tokenized or written later."""
        try:
            json.dumps({name: value}, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise self.error(
                f"the field `{name.encode(errors='replace').decode()}` holds half of a surrogate pair",
                "Allowed: complete Unicode characters",
                "Write the file again with whole characters",
            ) from None


def _in_yaml(value: object) -> str:
    """As an entry of a list has it: a blank follows each colon."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {in_hydra(each)}" for name, each in value.items()) + "}"
    return in_hydra(value)


def _either(names: Sequence[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


def usual_column(name: str, columns: Collection[str]) -> str | None:
    """What published data sets call one of our fields, of these columns; None where they call it so in none."""
    return next((each for each in _USUAL_NAMES.get(name, ()) if each in columns), None)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and {"role", "content"} <= value.keys()


def _listed(names: Collection[str]) -> str:
    """The first names, and how many more there are."""
    shown_names = ", ".join(f"`{_cut(name)}`" for name in islice(names, _MOST_LISTED)) or "none"
    return shown_names + (f" and {len(names) - _MOST_LISTED:,} more" if len(names) > _MOST_LISTED else "")


def read_json_lines(path: Path, *, kind: str) -> Iterator[JsonLine]:
    """Yield the lines of a file. `kind` names the file in messages, such as `prompt file`."""
    offset_bytes, is_empty = 0, True
    with reading(path, kind), path.open("rb") as file:
        for number, raw_line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), start=1):
            if len(raw_line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{path}, line {number}: the line is longer than {MAX_LINE_BYTES >> 20} MB",
                    "Allowed: one JSON object per line",
                    "Rewrite the file with a line break after each object",
                )
            content = raw_line.removeprefix(codecs.BOM_UTF8) if number == 1 else raw_line
            raw = content.removesuffix(b"\n")
            if raw and not raw.isspace():
                is_empty = False
                begin = offset_bytes + len(raw_line) - len(content)
                yield _parse_line(
                    raw,
                    FileLine(path=path, number=number, offset_bytes=begin, num_bytes=len(raw), digest=_digest(raw)),
                )
            offset_bytes += len(raw_line)
    if is_empty:
        raise DataError(
            f"The {kind} {path} is empty",
            "Allowed: one JSON object per line",
            "Write at least one line, or name another file",
        )


def read_line_again(line: FileLine) -> JsonLine:
    """Read one line that `read_json_lines` gave earlier.

    Raises:
        DataError: The file is gone, or was changed since.
    """
    with reading(line.path, "prompt file"), line.path.open("rb") as file:
        file.seek(line.offset_bytes)
        raw = file.read(line.num_bytes)
    if _digest(raw) != line.digest:
        raise DataError(
            f"{line} is not what it was when the run began",
            "Allowed: a prompt file that does not change while a run uses it",
            "Restore the file, and start or resume the run",
        )
    again = _parse_line(raw, line)
    return again.with_columns(dict(line.columns)) if line.columns else again


def shown(value: object) -> str:
    """Show a JSON value in a message, cut when long."""
    return _cut(json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def remedy_of(error: UnicodeDecodeError) -> str:
    """Say how to make UTF-8 of a file that is not, by the first bytes of what was decoded."""
    if error.object.startswith(_COMPRESSED):
        return "Decompress the file"
    if error.object.startswith(_ZIP):
        return "Decompress the file; save a spreadsheet as CSV in UTF-8"
    encoding = next((name for order, name in _BYTE_ORDERS.items() if error.object.startswith(order)), "latin1")
    return f"Convert the file, for example with `iconv -f {encoding} -t utf-8`"


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=8).digest()


@contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn what the operating system says of a file into a `DataError`; refuse what is no file on a disk."""
    if kind_of_path := special_kind(path):
        raise DataError(
            f"The {kind} {path} is {kind_of_path}",
            "Allowed: a file on a disk, since it is read again later",
            "Write its lines into a file, and name that",
        )
    try:
        yield
    except FileNotFoundError:
        allowed = f"{_ALLOWED}; of prompts and data sets a folder of these, too"
        raise DataError(f"The {kind} {path} does not exist", allowed, _nearest_name(path)) from None
    except IsADirectoryError:
        raise DataError(f"The {kind} {path} is a directory", _ALLOWED, "Name a file in that directory") from None
    except OSError as error:
        raise DataError(
            f"The {kind} {path} cannot be read: {error.strerror}",
            "Allowed: a file that this user may read",
            "Check the path and its permissions",
        ) from error


def _nearest_name(path: Path) -> str:
    if path.is_symlink():
        return f"It is a link to {path.readlink()}, which is not there: copy or download that again"
    if of_hub := re.match(r"https?:/+huggingface\.co/datasets/([\w.-]+/[\w.-]+)", str(path)):
        return f"Name a data set of the Hub by hf://{of_hub[1]}, or by the folder to which it was downloaded"
    if not path.parent.is_dir():
        named = f"; a data set of the Hub is hf://{path}" if re.fullmatch(r"[\w-]+/[\w-]+", str(path)) else ""
        return f"Check the path: the directory {path.parent} does not exist either{named}"
    meant = nearest_beside(path)
    return f"Did you mean {meant}?" if meant else f"Check the path; {path.parent} has no such name"


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Refuse a repeated name: of its values one would count."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        names = Counter(name for name, _ in pairs)
        raise ValueError(f"an object has {names.most_common(1)[0][0]!r} several times")
    return fields


_DECODER = json.JSONDecoder(object_pairs_hook=_object)


def _parse_line(raw_line: bytes, line: FileLine) -> JsonLine:
    try:
        value = _DECODER.decode(raw_line.decode())
    except UnicodeDecodeError as error:
        raise DataError(
            f"{line}: byte {error.start + 1} (0x{raw_line[error.start]:02x}) is not UTF-8",
            "Allowed: text in UTF-8",
            remedy_of(error),
        ) from None
    except json.JSONDecodeError as error:
        raise DataError(
            f"{line}: broken JSON at column {error.colno}: {error.msg}",
            "Allowed: one JSON object per line",
            "Repair the line; a file with one large JSON array has to be rewritten as lines",
        ) from None
    except (ValueError, RecursionError) as error:
        # Legal JSON: an integer of thousands of digits, thousands of nested brackets, or a repeated name.
        raise DataError(
            f"{line}: the JSON cannot be read: {error}", "Allowed: one JSON object per line", "Repair the line"
        ) from None
    if not isinstance(value, dict):
        raise DataError(
            f"{line}: the line is {shown(value)}, not an object",
            "Allowed: one JSON object per line, in curly brackets",
            "Rewrite the file with one object per line",
        )
    parsed = JsonLine(line, value)
    if b"\\ud" in raw_line or b"\\uD" in raw_line:
        for name, own in value.items():
            parsed.refuse_lone_surrogates(name, own)
    return parsed
