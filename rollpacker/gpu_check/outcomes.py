"""What became of a row."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Of one row."""

    status: Literal["passed", "failed", "not possible"]
    why: str = ""
    """Empty if it passed."""
    figures: dict[str, float] = field(default_factory=dict)
    """What was measured, by name with its unit."""
    seconds: float = 0.0


class NotPossible(Exception):
    """A row found that this machine lacks what it needs."""


class Refuted(Exception):
    """What a row was to show is not so."""


def require(is_so: bool, otherwise: str) -> None:  # a statement with its opposite
    """Raise `Refuted` unless something is so."""
    if not is_so:
        raise Refuted(otherwise)
