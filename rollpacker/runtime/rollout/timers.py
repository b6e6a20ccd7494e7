"""The driver's timers: one heap, and one wake-up of the event loop for the earliest.

Invariant: a timer fires once for each time that it is set, not before its time, unless it is set again before. Timers
of one time fire in the order in which they were set.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable

from rollpacker.runtime.waiting.clock import RunClock


class Timers:
    """Fires named timers, in virtual or in real time.

    Args:
        clock: The run's.
        on_fired: Told of each timer that is due.
    """

    def __init__(self, clock: RunClock, on_fired: Callable[[str], None]) -> None:
        self._clock = clock
        self._on_fired = on_fired
        self._loop = asyncio.get_running_loop()
        self._heap: list[tuple[float, int, str]] = []
        """Of (loop time, number, name); an entry with another number than the name's last one is void."""
        self._numbers = itertools.count()
        self._last_number: dict[str, int] = {}
        """Of every timer that is set."""
        self._wake_up: asyncio.TimerHandle | None = None
        self._has_stopped = False

    def set(self, name: str, at_s: float) -> None:
        """Have a timer fire, or move it; nothing once they have stopped.

        Args:
            name: Of the timer.
            at_s: Seconds since the run began.
        """
        if self._has_stopped:
            return
        self._last_number[name] = number = next(self._numbers)
        heapq.heappush(self._heap, (self._loop.time() + at_s - self._clock.now(), number, name))
        self._plan()

    def stop(self) -> None:
        """Fire no timer any more, whatever is set after this."""
        self._has_stopped = True
        self._heap.clear()
        self._last_number.clear()
        if self._wake_up is not None:
            self._wake_up.cancel()

    def _plan(self) -> None:
        """Wake up for the earliest timer."""
        if self._wake_up is not None:
            self._wake_up.cancel()
        self._wake_up = self._loop.call_at(self._heap[0][0], self._fire) if self._heap else None

    def _fire(self) -> None:
        due_s = self._loop.time()
        self._wake_up = None
        due: list[tuple[int, str]] = []
        while self._heap and self._heap[0][0] <= due_s:
            _, number, name = heapq.heappop(self._heap)
            if self._last_number.get(name) == number:
                due.append((number, name))
        self._plan()
        for number, name in due:
            if self._last_number.get(name) == number:  # one that fired before it may have moved it
                del self._last_number[name]
                self._on_fired(name)
