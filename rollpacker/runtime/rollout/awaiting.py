"""What the pipeline waits for while the driver digests facts in a task of its own.

A wait has its whole deadline again whenever something comes about: an engine, the reward or an environment answers, an
engine comes or goes. The time that passes, measurements, and workers that come and go are nothing by themselves, else
a run that looks at its engines every few seconds would wait for ever; they count if something follows from them.
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
from rollpacker.runtime.waiting.shared_timeout import SharedTimeout
from rollpacker.runtime.waiting.watchdog import Watchdog

_NO_PROGRESS = TimerFired | ProgressMeasured | WorkerArrived | NoticeGiven | WorkerLeft | FetchFailed
"""Unless something follows."""
_NOTHING = SetTimer | MeasureProgress | WishWorkers | StartMember | FetchPolicy | DismissWorker
"""What these may lead to again and again while no request goes on."""


class Awaiting:
    """One wait at a time, for something that facts lead to.

    Args:
        watchdog: Ends a wait in which nothing happens.
        stall_s: For so long.
        describe: Says what is waited for.
    """

    def __init__(self, watchdog: Watchdog, stall_s: float, describe: Callable[[], str]) -> None:
        self._timeout = SharedTimeout(watchdog, stall_s)
        self._describe = describe
        self._awaited: Callable[[], bool] = lambda: False
        """What `until` waits for."""
        self._has_come = asyncio.Event()
        self._error: Exception | None = None
        """What ended the driver's task, or work beside it."""

    async def until(self, is_reached: Callable[[], bool]) -> None:
        """Wait for what the facts lead to; raises what ended the driver's task, or work beside it, at once."""
        while self._error is None and not is_reached():
            self._awaited = is_reached
            self._has_come.clear()
            await self._timeout.within(self._describe, self._has_come.wait())
        if self._error is not None:
            raise self._error

    def note(self, event: Event, commands: Iterable[Command]) -> None:
        """Tell of what happened and what follows: if it is progress, the wait has its whole time again."""
        if not isinstance(event, _NO_PROGRESS) or not all(isinstance(command, _NOTHING) for command in commands):
            self._timeout.extend()

    def extend(self) -> None:
        """Give the wait its whole time again, and look."""
        self._timeout.extend()
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
        self._timeout.close()
