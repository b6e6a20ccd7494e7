"""What a response is held against: one class per kind of check.

A reference is what travels with a prompt: small, frozen, picklable. Test cases may be megabytes per prompt, so a
`CodeReference` holds where they lie; `rollpacker.data.test_cases.load_test_cases` reads them when a response is scored,
in the process that scores it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLine:
    """A line of a file, and how to find it again without reading the lines before it."""

    path: Path
    number: int
    """From 1, as editors count."""
    offset_bytes: int
    num_bytes: int
    digest: bytes
    """Of these bytes; it shows that the file was changed since."""
    columns: tuple[tuple[str, str], ...] = ()
    """How its fields are called where the file calls them otherwise: our name and the file's."""

    def __str__(self) -> str:
        return f"{self.path}, line {self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRow:
    """A row of a table (Parquet, Arrow, CSV), which is read from its beginning."""

    path: Path
    number: int
    """From 1, without a header."""

    def __str__(self) -> str:
        return f"{self.path}, row {self.number}"


Place = FileLine | TableRow
"""Where a prompt was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerReference:
    """An answer to compare with: of math, of the demo's walks, or for a judge."""

    text: str
    """Bare of white space around it; empty where a prompt file has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeReference:
    """Test cases, which stay in the prompt file until they are needed."""

    entry_point: str | None
    """Name of the function (or of the method of a class `Solution`) that cases call; None where they name it
    themselves."""
    packages: tuple[str, ...]
    """Modules beside the standard library's that its tests import."""
    line: FileLine


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReference:
    """What an LLM judge is told beside prompt and response; at least one of the two."""

    rubric: str | None
    answer: str | None
    """A right answer to compare with."""


Reference = AnswerReference | CodeReference | JudgeReference


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseLimits:
    """What a prompt file allows a test case; None leaves it to the sandbox."""

    time_s: float | None = None
    memory_mb: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StdinCase:
    """The response is a program that reads `input` and is to write `output`."""

    input: str
    output: str
    limits: CaseLimits


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CallCase:
    """The entry point is called."""

    args: tuple[object, ...]
    """JSON values, by position."""
    accepted: tuple[object, ...]
    """JSON values; the call is to return one of them."""
    limits: CaseLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class AssertCase:
    """Python that runs after the response."""

    source: str
    """Imports what it tests from `solution`; its tests run as pytest and unittest would run them. The response is right
    unless something raises."""
    limits: CaseLimits


TestCase = StdinCase | CallCase | AssertCase
