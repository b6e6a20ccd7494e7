"""An asyncio event loop whose clock jumps to the next timer instead of waiting for it.

Invariant: what runs on the loop, and in which order, follows from the program alone. Timers of one time run in an
order that the program fixes, nothing outside the process can make a callback ready but a signal, and a call that would
block the loop or leave it (threads, sockets, subprocesses) is refused. When nothing is ready and no timer is set,
nothing can ever happen again: that is a deadlock, and it is reported with every task that waits and where.

It stands on `asyncio.BaseEventLoop` by the hooks that exist for subclasses: `time`, `_selector`, `_process_events` and
`_write_to_self`.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar, TypeVarTuple, Unpack

from rollpacker.core.errors import InternalError

Answer = TypeVar("Answer")
Ts = TypeVarTuple("Ts")


class DeadlockError(InternalError):
    """Every task waits for something that nobody will do."""


def run_in_virtual_time(main: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine to its end, as `asyncio.run` does, in virtual time that begins at 0.

    Raises:
        DeadlockError: It waits for something that can never happen.
    """
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


class VirtualTimeLoop(asyncio.BaseEventLoop):
    """An event loop that is never idle: it runs what is ready, then jumps."""

    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0
        self._selector = _Jump(self)
        self._clock_resolution = math.ulp(0.0)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now_s

    def jump(self) -> None:
        """Move the clock to the next timer."""
        if not self._scheduled:
            raise _deadlock(self)
        self._now_s = max(self._now_s, self._scheduled[0].when())
        self._clock_resolution = math.ulp(self._now_s)  # a timer is due before `now + resolution`: at its time, exactly

    def set_time(self, time_s: float) -> None:
        """Let it be this late, or this early.

        Raises:
            InternalError: A timer is set, which would then ring at another time than was asked for.
        """
        if any(not timer.cancelled() for timer in self._scheduled):
            raise InternalError(f"The time was set to {time_s:g} s while timers wait.")
        self._now_s = time_s
        self._clock_resolution = math.ulp(time_s)

    def suspend(self, duration_s: float) -> None:
        """Let time pass in which nothing runs, as when the machine sleeps: what was due meanwhile comes at once."""
        self._now_s += duration_s
        self._clock_resolution = math.ulp(self._now_s)

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

    # What the base class asks of its subclasses

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: the selector never reports an event."""

    def _write_to_self(self) -> None:
        """Do nothing: a loop that never sleeps needs no wake-up."""


class _Jump:
    """Stands where a loop has its selector: asked to wait for so long, it moves the clock."""

    def __init__(self, loop: VirtualTimeLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> tuple[()]:
        """Return at once, later in virtual time unless the timeout is 0."""
        if timeout is None or timeout > 0:
            self._loop.jump()
        return ()


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
