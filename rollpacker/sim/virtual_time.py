"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Invariant: what runs on the loop, and in which order, follows from the program alone. Timers of one time run in the
order in which they were set, whatever else is set; nothing outside the process can make a callback ready but a signal,
and a call that would block the loop or leave it (threads, sockets, subprocesses) is refused. When nothing is ready and
no timer is set, nothing can ever happen again: that is a deadlock, and it is reported with every task that waits and
where.

It stands on `asyncio.BaseEventLoop`: it keeps the timers itself, and its turn stands in the place of the base class's,
which asks a selector for events that cannot come, compares timers in Python, and lets timers of one time run in an
order that depends on all others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import signal
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple, Unpack

from rollpacker.core.errors import InternalError
from rollpacker.sim.garbage import rarely_collected

Answer = TypeVar("Answer")
Ts = TypeVarTuple("Ts")

_MIN_CANCELLED = 100
"""Cancelled timers that are not worth a search; asyncio's own number."""


class DeadlockError(InternalError):
    """Every task waits, and no timer is set."""


def run_in_virtual_time(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end, as `asyncio.run` does, in virtual time that begins at 0.

    Raises:
        DeadlockError: It waits for something that can never happen.
    """
    with rarely_collected(), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop that is never idle: it runs what is ready, then jumps to the next timer."""

    _ready: deque[asyncio.Handle]
    _stopping: bool

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        """Heap of (when, number, timer): timers of one time run in the order in which they were set."""
        self._numbers = itertools.count()
        self._num_cancelled = 0
        """How many timers were cancelled since those that were left the heap."""

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Set a timer.

        Raises:
            InternalError: Its time is no number: it would neither ring nor let others be sorted.
        """
        if math.isnan(when):
            raise InternalError(f"A timer was set for {when} s, to call {callback}.")
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    def jump(self) -> None:
        """Move the clock to the next timer."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not timers:
            raise _deadlock(self)
        self._now_s = max(self._now_s, timers[0][0])

    def set_time(self, time_s: float) -> None:
        """Let it be this late, or this early.

        Raises:
            InternalError: A timer is set, which would then ring at another time than was asked for.
        """
        if any(not timer.cancelled() for _, _, timer in self._timers):
            raise InternalError(f"The time was set to {time_s:g} s while timers wait.")
        self._now_s = time_s

    def suspend(self, duration_s: float) -> None:
        """Let time pass in which nothing runs, as when the machine sleeps: what was due meanwhile comes at once."""
        self._now_s += duration_s

    def add_signal_handler(self, sig: int, callback: Callable[[Unpack[Ts]], Any], *args: *Ts) -> None:
        """Call back between two callbacks of the loop; Python's own handler will do, as the loop never sleeps."""

        def handle(_: int, __: FrameType | None) -> None:
            self.call_soon_threadsafe(callback, *args)

        signal.signal(sig, handle)

    def run_in_executor(
        self,
        executor: Any,  # noqa: ARG002  (asyncio's signature)
        func: Callable[[Unpack[Ts]], Answer],
        *args: *Ts,  # noqa: ARG002  (asyncio's signature)
    ) -> asyncio.Future[Answer]:
        """Refuse: a thread takes real time, and the clock would jump past it."""
        raise InternalError(f"{getattr(func, '__qualname__', func)} was sent to a thread in virtual time.")

    # In place of the base class's own

    def _run_once(self) -> None:
        """Run what is ready and what is due by now; what they make ready comes in the next turn."""
        ready, timers = self._ready, self._timers
        if not ready and not self._stopping:
            self.jump()
        while timers and timers[0][0] <= self._now_s:
            ready.append(heapq.heappop(timers)[2])
        for _ in range(len(ready)):
            handle = ready.popleft()
            if not handle.cancelled():
                handle._run()  # noqa: SLF001  (what the base class's own turn does)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:  # noqa: ARG002  (asyncio's signature)
        """Keep no more cancelled timers than others, beyond a few: they may be due in hours."""
        self._num_cancelled += 1
        if self._num_cancelled > _MIN_CANCELLED and self._num_cancelled > len(self._timers) // 2:
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._num_cancelled = 0

    def _write_to_self(self) -> None:
        """Do nothing: a loop that never sleeps needs no wake-up."""


def _deadlock(loop: asyncio.AbstractEventLoop) -> DeadlockError:
    waiting = sorted(f"  {task.get_name()}: {_where(task)}" for task in asyncio.all_tasks(loop))
    return DeadlockError(
        f"Nothing can happen any more at {loop.time():g} s of virtual time; these wait:\n" + "\n".join(waiting)
    )


def _where(task: asyncio.Task[Any]) -> str:
    """The innermost line of a task that is suspended, and what it waits for."""
    awaited: Any = task.get_coro()
    place = "not started"
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is None:
            break
        place = f"{frame.f_code.co_qualname} ({frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno})"
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return place
