"""The driver's timers, by name.

Invariant: a timer fires once for each time that it is set, not before its time, unless it is set again before.
"""

from __future__ import annotations

import asyncio
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
        self._handles: dict[str, asyncio.TimerHandle] = {}
        """Of every timer that is set."""
        self._has_stopped = False

    def set(self, name: str, at_s: float) -> None:
        """Have a timer fire, or move it; nothing once they have stopped.

        Args:
            name: Of the timer.
            at_s: Seconds since the run began.
        """
        if self._has_stopped:
            return
        if name in self._handles:
            self._handles[name].cancel()
        when_s = self._loop.time() + at_s - self._clock.now()
        self._handles[name] = self._loop.call_at(when_s, self._fire, name)

    def stop(self) -> None:
        """Fire no timer any more, whatever is set after this."""
        self._has_stopped = True
        for handle in self._handles.values():
            handle.cancel()

    def _fire(self, name: str) -> None:
        del self._handles[name]
        self._on_fired(name)
