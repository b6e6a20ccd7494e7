"""What a check says: one line, and a remedy unless all is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollpacker.core.errors import RollpackerError

Level = Literal["ok", "warning", "problem"]
"""A problem stops a run; a warning may, or costs something."""

Fault = tuple[bool, Literal["warning", "problem"], str, str]
"""Whether it is there, how bad it is, what to say, and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str
    """One or two words."""
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty when all is well."""


def probe(subject: str, well: str, *faults: Fault) -> Finding:
    """Tell the first fault that is there; where none is, what is well."""
    for is_there, level, text, remedy in faults:
        if is_there:
            return Finding(subject=subject, level=level, text=text, remedy=remedy)
    return Finding(subject=subject, level="ok", text=well)


def fine(subject: str, text: str) -> Finding:
    """All is well."""
    return probe(subject, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """A run may fail, or pays for it."""
    return probe(subject, "", (True, "warning", text, remedy))


def problem(subject: str, text: str, remedy: str) -> Finding:
    """A run would not work."""
    return probe(subject, "", (True, "problem", text, remedy))


def problem_of(subject: str, error: RollpackerError) -> Finding:
    """Turn an error into what it means to a check."""
    parts = (part.rstrip(".") for part in (error.problem, error.allowed) if part)
    return problem(subject, ". ".join(parts), error.remedy)
