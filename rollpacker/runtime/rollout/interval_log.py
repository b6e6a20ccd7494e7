"""What actors did, and when, until the rows of the step are written: the source of the `intervals` table.

There are no more than a few hundred entries per step; stages of the step and what engines generated are known elsewhere
(`recorder.py`).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollpacker.runtime.waiting.clock import RunClock


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One stretch of time in which an actor did one thing; the fields are columns of `intervals`."""

    actor: str
    role: str
    activity: str
    started_at_s: float
    ended_at_s: float
    subject: str | None = None
    num_tokens: int | None = None


class IntervalLog:
    """Collects the entries of one step."""

    def __init__(self, clock: RunClock) -> None:
        self._clock = clock
        self._entries: list[Interval] = []

    def add(self, actor: str, role: str, activity: str, started_at_s: float) -> None:
        """Write down what ends now."""
        self._entries.append(
            Interval(actor=actor, role=role, activity=activity, started_at_s=started_at_s, ended_at_s=self._clock.now())
        )

    @contextmanager
    def during(self, actor: str, role: str, activity: str) -> Iterator[None]:
        """Write down how long the block takes, also when it raises."""
        began = self._clock.now()
        try:
            yield
        finally:
            self.add(actor, role, activity, began)

    def take(self) -> list[Interval]:
        """Hand out what was written since the last call."""
        entries, self._entries = self._entries, []
        return entries
