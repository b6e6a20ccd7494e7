"""What the pipeline waits for while the driver digests facts in a task of its own.

A wait has its whole deadline again whenever something comes about: an engine, the reward or an environment answers, an
engine comes or goes. The time that passes, measurements, and workers that come and go are nothing by themselves, else
a run that looks at its engines every few seconds would wait for ever; they count if something follows from them.

A driver makes progress some thousand times per step, and a timer for each costs more than what it bounds. So one timer
is set for the first wait; when it expires, it is set again for the rest of the current one. A wait ends exactly at its
deadline, and none before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from rollpacker.core.commands import (
    Command,
    DismissWorker,
    FetchPolicy,
    MeasureProgress,
    SetTimer,
    StartMember,
    WishWorkers,
)
from rollpacker.core.events import (
    Event,
    FetchFailed,
    NoticeGiven,
    ProgressMeasured,
    TimerFired,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.runtime.waiting.watchdog import Watchdog

_NO_PROGRESS = TimerFired | ProgressMeasured | WorkerArrived | NoticeGiven | WorkerLeft | FetchFailed
"""Unless something follows."""
_NOTHING = SetTimer | MeasureProgress | WishWorkers | StartMember | FetchPolicy | DismissWorker
"""What these may lead to again and again while no request goes on."""


class Awaiting:
    """One wait at a time, for something that facts lead to.

    Args:
        watchdog: Ends a wait in which nothing happens, by its clock.
        stall_s: For so long.
        describe: Says what is waited for.
    """

    def __init__(self, watchdog: Watchdog, stall_s: float, describe: Callable[[], str]) -> None:
        self._watchdog = watchdog
        self._stall_s = stall_s
        self._describe = describe
        self._timer: asyncio.TimerHandle | None = None
        self._began_at_s = 0.0
        """When the current wait did, or the last progress in it was made."""
        self._is_overdue = False
        self._awaited: Callable[[], bool] = lambda: False
        """What `until` waits for."""
        self._has_come = asyncio.Event()
        """Clear during a wait alone, or after one that was cancelled."""
        self._error: Exception | None = None
        """What ended the driver's task, or work beside it."""

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for what the facts lead to; raises what ended the driver's task, or work beside it, at once.

        Raises:
            DeadlineExceeded: Nothing came about for too long.
        """
        self._is_overdue = False
        while self._error is None and not is_reached():
            if self._is_overdue:
                await self._watchdog.give_up(self._stall_s, self._describe())
            self._awaited, self._began_at_s = is_reached, self._watchdog.time()
            if self._timer is None:
                self._timer = self._watchdog.call_at(self._began_at_s + self._stall_s, self._end_if_overdue)
            self._has_come.clear()
            await self._has_come.wait()
        if self._error is not None:
            raise self._error

    def _end_if_overdue(self) -> None:
        self._timer = None
        if self._has_come.is_set():
            return
        due_s = self._began_at_s + self._stall_s
        if self._watchdog.time() < due_s:
            self._timer = self._watchdog.call_at(due_s, self._end_if_overdue)
        else:
            self._is_overdue = True
            self._has_come.set()

    def note(self, event: Event, commands: Iterable[Command]) -> None:
        """Tell of what happened and what follows: if it is progress, the wait has its whole time again."""
        if not isinstance(event, _NO_PROGRESS) or not all(isinstance(command, _NOTHING) for command in commands):
            self._began_at_s = self._watchdog.time()

    def extend(self) -> None:
        """Give the wait its whole time again, and look."""
        self._began_at_s = self._watchdog.time()
        self.look()

    def look(self) -> None:
        """Wake the pipeline if what it waits for has come."""
        if self._error is not None or self._awaited():
            self._has_come.set()

    def fail(self, error: Exception) -> None:
        """Nothing more will happen."""
        self._error = error
        self.look()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
