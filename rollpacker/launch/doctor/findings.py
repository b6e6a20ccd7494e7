"""What a check says: one line, and a remedy unless all is well."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rollpacker.core.errors import RollpackerError

Level = Literal["ok", "warning", "problem"]
"""A problem stops a run; a warning may, or costs something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check."""

    subject: str
    """One or two words."""
    level: Level
    text: str
    remedy: str = ""
    """What to do; empty when all is well."""


def fine(subject: str, text: str) -> Finding:
    """All is well."""
    return Finding(subject=subject, level="ok", text=text)


def warning(subject: str, text: str, remedy: str) -> Finding:
    """A run may fail, or pays for it."""
    return Finding(subject=subject, level="warning", text=text, remedy=remedy)


def problem(subject: str, text: str, remedy: str) -> Finding:
    """A run would not work."""
    return Finding(subject=subject, level="problem", text=text, remedy=remedy)


def problem_of(subject: str, error: RollpackerError) -> Finding:
    """Turn an error into what it means to a check."""
    parts = (part.rstrip(".") for part in (error.problem, error.allowed) if part)
    return problem(subject, ". ".join(parts), error.remedy)
