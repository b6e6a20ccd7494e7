"""Bounds successive waits, as `Watchdog.within` does, by one timer for many of them.

A driver makes progress some thousand times per step, and a timer for each costs more than what it bounds. So one timer
is set for the first wait. When it expires, it is set again for the rest of the current wait.

Invariant: a wait ends exactly at its deadline, and none before; the deadline counts from the beginning of the wait, or
from the last progress in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from rollpacker.runtime.waiting.watchdog import Watchdog

Answer = TypeVar("Answer")


class SharedTimeout:
    """Awaits one answer after the other, each within the deadline."""

    def __init__(self, watchdog: Watchdog, deadline_s: float) -> None:
        self._watchdog = watchdog
        self._deadline_s = deadline_s
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object] | None = None
        """Of the current wait."""
        self._began_at_s = 0.0
        self._is_exhausted = False

    async def within(self, what: Callable[[], str], answer: Awaitable[Answer]) -> Answer:
        """Await an answer; raises `DeadlineExceeded` with what was awaited."""
        task = asyncio.current_task()
        assert task is not None
        num_cancelling = task.cancelling()
        self._task, self._began_at_s, self._is_exhausted = task, self._loop.time(), False
        if self._timer is None:
            self._timer = self._loop.call_later(self._deadline_s, self._look)
        try:
            return await answer
        except asyncio.CancelledError:
            if not self._is_exhausted or task.uncancel() > num_cancelling:
                raise
        finally:
            self._task = None
        return await self._watchdog.give_up(self._deadline_s, what())

    def extend(self) -> None:
        """Progress was made: the current wait has its whole time again."""
        self._began_at_s = self._loop.time()

    def _look(self) -> None:
        """Cancel the current wait if it has reached its deadline."""
        self._timer = None
        if self._task is None:
            return
        due_s = self._began_at_s + self._deadline_s
        if self._loop.time() < due_s:
            self._timer = self._loop.call_at(due_s, self._look)
        else:
            self._is_exhausted = True
            self._task.cancel()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
