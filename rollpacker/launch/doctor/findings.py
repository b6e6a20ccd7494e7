"""The result of a check: one line, and a remedy unless it is ok."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollpacker.core.errors import RollpackerError

Level = Literal["ok", "warning", "problem"]
"""A problem stops a run; a warning may stop it, or cost something."""

Fault = tuple[bool, Literal["warning", "problem"], str, str]
"""Whether it is present, its level, its text, and its remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str
    """One or two words."""
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty when it is ok."""


def probe(subject: str, well: str, *faults: Fault) -> Finding:
    """The first fault that is present; without one, `ok` with the text `well`."""
    for is_there, level, text, remedy in faults:
        if is_there:
            return Finding(subject=subject, level=level, text=text, remedy=remedy)
    return Finding(subject=subject, level="ok", text=well)


def fine(subject: str, text: str) -> Finding:
    """A check that is ok."""
    return probe(subject, text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """A run may fail, or be slower."""
    return probe(subject, "", (True, "warning", text, remedy))


def problem(subject: str, text: str, remedy: str) -> Finding:
    """A run would not work."""
    return probe(subject, "", (True, "problem", text, remedy))


def problem_of(subject: str, error: RollpackerError) -> Finding:
    """Turn an error into a finding."""
    parts = (part.rstrip(".") for part in (error.problem, error.allowed) if part)
    return problem(subject, ". ".join(parts), error.remedy)
