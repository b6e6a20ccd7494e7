"""What the pipeline waits for while the driver digests facts in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rollpacker.runtime.waiting.shared_timeout import SharedTimeout
from rollpacker.runtime.waiting.watchdog import Watchdog


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

    def look(self) -> None:
        """Something has happened: wake the pipeline if it is what it waits for."""
        self._timeout.extend()
        if self._error is not None or self._awaited():
            self._has_come.set()

    def fail(self, error: Exception) -> None:
        """Nothing more will happen."""
        self._error = error
        self.look()

    def close(self) -> None:
        self._timeout.close()
