"""The timers that machines have set and that have not fired: what a driver sets again after a restore.

    absent ──SetTimer──> pending ──TimerFired──> absent          SetTimer of a pending one moves it

Invariant: a timer fires once for each time that it is set, unless it was set again before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

from rollpacker.core.commands import Command, SetTimer
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import TimerFired


class PendingTimers:
    """Names and times, in the order in which they were set first."""

    def __init__(self) -> None:
        self._at_s: dict[str, float] = {}

    @property
    def at_s(self) -> Mapping[str, float]:
        """When each pending timer is due, in seconds since the run began."""
        return self._at_s

    def note(self, commands: Iterable[Command]) -> None:
        """Take down the timers that some commands set."""
        for command in commands:
            if isinstance(command, SetTimer):
                self._at_s[command.timer] = command.at_s

    def fire(self, event: TimerFired) -> None:
        """Take out a timer that fired.

        Raises:
            ImpossibleEvent: It is not set; nothing was changed.
        """
        if event.timer not in self._at_s:
            raise ImpossibleEvent(f"The timer {event.timer!r} fired, which is not set.", f"Set are {list(self._at_s)}.")
        del self._at_s[event.timer]

    def forget(self, timers: Iterable[str]) -> None:
        """Take out timers of an earlier attempt, which the driver does not know."""
        for timer in timers:
            self._at_s.pop(timer, None)

    def snapshot(self) -> list[Any]:
        """Give the whole state as JSON data."""
        return [[timer, at_s] for timer, at_s in self._at_s.items()]

    @classmethod
    def restore(cls, snapshot: list[Any]) -> Self:
        """Rebuild the timers that gave the snapshot."""
        timers = cls()
        timers._at_s = dict(snapshot)
        return timers
