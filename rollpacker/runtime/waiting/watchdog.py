"""Every wait has a deadline, and an expired one reports what it waited for.

Two things can hang. An awaited answer may never come: `within` bounds the wait, writes a report (what was awaited,
every task, every thread, every actor that still answers) and raises `DeadlineExceeded`. Or the event loop itself may be
blocked by a call, and then no task can notice: a thread watches its heartbeat, writes the stacks, and ends the process.
The guardian then ends every process that it had started.

While the whole process is stopped, by Ctrl-Z or Slurm, no answer can arrive, and the clock of waits stands still. The
thread reads it every second, also while the event loop is blocked, so between two readings more time passes only if
the process was stopped, or a call held the GIL. When the process goes on, the heartbeat is overdue; its timer runs
before those of the waits that were due later, and moves them.
"""

from __future__ import annotations

import asyncio
import faulthandler
import io
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from rollpacker.core.errors import DeadlineExceeded

Answer = TypeVar("Answer")

_HEARTBEAT_S = 1.0
_STANDSTILL_S = 3.0
"""Between two readings of a clock that a thread reads every second: the process was stopped."""
_STACKS_DEADLINE_S = 3.0
"""An actor that does not return its stacks in this time is itself stuck, and the report says so."""
_LAST_WORDS_S = 5.0
"""For the report of a stuck driver: a file system that hangs may be why it is stuck, and holds the report up, too. As
long again for its stacks on stderr, which then have no other place."""


class Watchdog:
    """Bounds the waits of one run and reports those that expire."""

    def __init__(self, report: Path, loop_stall_s: float) -> None:
        self._report = report
        self._loop_stall_s = loop_stall_s
        self._stack_sources: dict[str, Callable[[], Awaitable[str]]] = {}
        self._last_beat = 0.0
        self._stopped = threading.Event()
        self._heartbeat: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """None unless it is watched."""
        self._reading = threading.Lock()
        self._read_at_s = 0.0
        """When the event loop's clock was read last, by that clock."""
        self._stood_still_s = 0.0
        self._waits: dict[asyncio.Timeout, float] = {}
        """When each is due, by the clock of waits."""

    def start(self) -> None:
        """Watch the running event loop."""
        self._loop = asyncio.get_running_loop()
        self._read_at_s = self._loop.time()
        self._beat()
        threading.Thread(target=self._watch_loop, name="watchdog", daemon=True).start()

    async def stop(self) -> None:
        self._stopped.set()
        if self._heartbeat is not None:
            self._heartbeat.cancel()

    def time(self) -> float:
        """Seconds on the clock of waits: the event loop's, without the time in which the process was stopped."""
        if self._loop is None:
            return asyncio.get_running_loop().time()
        with self._reading:
            now, before = self._loop.time(), self._read_at_s
            if now - before > _STANDSTILL_S and not self._stopped.is_set():
                self._stood_still_s += now - before
            self._read_at_s = now
            return now - self._stood_still_s

    def call_at(self, time_s: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        """Call at a time of this clock, or too early by how long the process is stopped until then."""
        return asyncio.get_running_loop().call_at(time_s + self._stood_still_s, callback)

    def add_stack_source(self, name: str, show_stacks: Callable[[], Awaitable[str]]) -> None:
        """Include an actor's stacks in the report of an expired wait, in place of an earlier one's of that name."""
        self._stack_sources[name] = show_stacks

    async def within(self, deadline_s: float, what: Callable[[], str] | str, answer: Awaitable[Answer]) -> Answer:
        """Await an answer for at most `deadline_s`; raises `DeadlineExceeded` with what was awaited."""
        try:
            async with self.limit(deadline_s) as scope:
                return await answer
        except TimeoutError:
            if not scope.expired():
                raise
        return await self.give_up(deadline_s, what if isinstance(what, str) else what())

    @asynccontextmanager
    async def limit(self, deadline_s: float) -> AsyncIterator[asyncio.Timeout]:
        """Limit what is awaited inside, as `asyncio.timeout` does, by this clock."""
        due_s = self.time() + deadline_s
        async with asyncio.timeout_at(due_s + self._stood_still_s) as scope:
            self._waits[scope] = due_s
            try:
                yield scope
            finally:
                del self._waits[scope]

    async def give_up(self, deadline_s: float, awaited: str) -> NoReturn:
        """Report a wait that expired; raises `DeadlineExceeded`."""
        where = f"are in {self._report}"
        try:
            await self._write_report(awaited, deadline_s)
        except OSError as error:
            where = f"could not be written to {self._report}: {error.strerror}"
        raise DeadlineExceeded(
            f"Waited {deadline_s:g} s for {awaited}, in vain.",
            "Deadlines are set under backend.deadlines.",
            f"Stacks of the driver and of every actor {where}.",
        )

    async def _write_report(self, awaited: str, deadline_s: float) -> None:
        out = io.StringIO()
        out.write(f"Waited {deadline_s:g} s for {awaited}.\n\n== Tasks of the driver\n")
        for task in asyncio.all_tasks():
            task.print_stack(file=out)
        out.write("\n== Threads of the driver\n")
        frames = sys._current_frames()  # noqa: SLF001  (the documented way to see other threads' stacks)
        for thread in threading.enumerate():
            out.write(f"\n-- {thread.name}\n")
            if thread.ident in frames:
                out.write("".join(traceback.format_stack(frames[thread.ident])))
        names, sources = [*self._stack_sources], [*self._stack_sources.values()]
        for name, stacks in zip(names, await asyncio.gather(*map(_stacks, sources)), strict=True):
            out.write(f"\n== {name}\n{stacks}")
        self._report.parent.mkdir(parents=True, exist_ok=True)
        self._report.write_text(out.getvalue())

    def _beat(self) -> None:
        self._last_beat = self.time()
        for wait, due_s in self._waits.items():
            at_s = due_s + self._stood_still_s
            if wait.when() != at_s and not wait.expired():
                wait.reschedule(at_s)
        self._heartbeat = asyncio.get_running_loop().call_later(_HEARTBEAT_S, self._beat)

    def _watch_loop(self) -> None:
        while not self._stopped.wait(_HEARTBEAT_S):
            silent_s = self.time() - self._last_beat
            if silent_s > self._loop_stall_s:
                try:
                    stacks = _stacks_of_threads()
                    if not _is_done_in_time(self._report_stall, silent_s, stacks):
                        words = f"They were not written there in {_LAST_WORDS_S:g} s:\n{stacks}"
                        _is_done_in_time(_write_to_stderr, words)
                finally:
                    os._exit(DeadlineExceeded.exit_code)

    def _report_stall(self, silent_s: float, stacks: str) -> None:
        _write_to_stderr(f"The driver is stuck in a blocking call; stacks are in {self._report}.\n")
        try:
            self._report.parent.mkdir(parents=True, exist_ok=True)
            self._report.write_text(f"The driver's event loop has been blocked for {silent_s:.0f} s.\n\n{stacks}")
        except OSError as error:
            _write_to_stderr(f"They could not be written there ({error.strerror}):\n{stacks}")


def _stacks_of_threads() -> str:
    """Take the stacks of all threads, in memory: `faulthandler` writes with the GIL held, and a file may hang."""
    try:
        memory = os.memfd_create("stacks")
    except OSError as error:  # no descriptor is left
        faulthandler.dump_traceback(all_threads=True)
        return f"They are on stderr: {error.strerror}.\n"
    with os.fdopen(memory, "r+", errors="replace") as stacks:
        faulthandler.dump_traceback(stacks, all_threads=True)
        stacks.seek(0)
        return stacks.read()


def _is_done_in_time(work: Callable[..., None], *given: object) -> bool:
    """Whether a thread has done some work within `_LAST_WORDS_S`."""
    thread = threading.Thread(target=work, args=given, daemon=True)
    thread.start()
    thread.join(_LAST_WORDS_S)
    return not thread.is_alive()


def _write_to_stderr(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()


async def _stacks(show_stacks: Callable[[], Awaitable[str]]) -> str:
    try:
        async with asyncio.timeout(_STACKS_DEADLINE_S):
            return await show_stacks()
    except Exception as error:  # noqa: BLE001  (a dead source is part of the report)
        return f"no answer: {error!r}\n"
