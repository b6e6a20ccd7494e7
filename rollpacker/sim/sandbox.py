"""Programs on the cores of a modelled allocation: a number at a time, which share the cores when there are fewer cores.

Processor sharing, one event per start or end: with n programs running, each advances at the rate min(1, cores / n), so
all of them advance alike, and one counter P (what a program that ran since time 0 would have computed) stands for the
progress of all. A program of work w that starts at P ends at P + w, whatever the rates are until then; a heap gives the
first. Its limit is wall-clock time, as a sandbox measures it: a crowd makes programs slower, and some of them fail.
Further programs wait, first come first served. O(log n) per event.

Invariants (`check`): never more programs run than there are places; the work of all programs equals the busy time of
the cores; no program runs beyond its limit.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from rollpacker.core.errors import InvariantViolated

_ROUNDING = 1e-6
"""Relative difference that two sums of the same times may have."""


@dataclass(slots=True, kw_only=True, eq=False)
class Program:
    """One program, on one core at a time."""

    work_s: float
    """Run time on a core of its own; infinite when it never ends."""
    limit_s: float
    """Wall-clock time after which it is killed, counted from its start."""
    started_at_s: float = math.nan
    started_at_progress: float = math.nan
    ended_at_s: float = math.nan
    """Not a number until it ends."""
    was_killed: bool = False

    @property
    def is_over(self) -> bool:
        return not math.isnan(self.ended_at_s)

    @property
    def time_s(self) -> float:
        """From its start to its end; exactly the limit when it was killed."""
        return self.limit_s if self.was_killed else self.ended_at_s - self.started_at_s


class Sandbox:
    """The programs of one allocation. The caller calls `advance` at `next_at_s`, and may not be late."""

    def __init__(self, *, num_places: int, num_cores: int) -> None:
        """Begin empty at time 0.

        Args:
            num_places: Programs that run at the same time.
            num_cores: Cores that they share.
        """
        self._num_places = num_places
        self._num_cores = num_cores
        self._waiting: deque[Program] = deque()
        self._running: dict[int, Program] = {}
        self._numbers = itertools.count()
        self._ends: list[tuple[float, int, Program]] = []
        """Heap by the progress at which a program ends."""
        self._kills: list[tuple[float, int, Program]] = []
        """Heap by the time at which a program is killed. In both heaps an entry of a program that is over is void."""
        self._now_s = 0.0
        self._progress_s = 0.0
        self._done_s = 0.0
        """Computed for programs that are over."""
        self.busy_core_s = 0.0
        """Core-seconds in which a program computed; the other cores were idle."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def next_at_s(self) -> float | None:
        """When the next program ends or is killed."""
        if not self._running:
            return None
        return min(self._next_end_s(), self._kills[0][0])

    def add(self, programs: Iterable[Program], now: float) -> None:
        """Run programs, as soon as there is room; `now` is not beyond `next_at_s`."""
        self._move_to(now)
        self._waiting.extend(programs)
        self._start()

    def advance(self, now: float) -> list[Program]:
        """Give the programs that have ended by now, in the order of their ends, and start those that waited."""
        due_s, next_end_s = self.next_at_s, self._next_end_s()
        self._move_to(now)
        if due_s is None or now < due_s:
            return []
        if now >= next_end_s:  # exactly, not up to the rounding of a division and a multiplication
            self._progress_s = max(self._progress_s, self._ends[0][0])
        over: list[Program] = []
        while self._ends and self._ends[0][0] <= self._progress_s:
            over.append(self._end(heapq.heappop(self._ends), was_killed=False))
            self._drop_void()
        while self._kills and self._kills[0][0] <= now:
            over.append(self._end(heapq.heappop(self._kills), was_killed=True))
            self._drop_void()
        self._start()
        return over

    def forget(self, now: float) -> None:
        """Kill what runs, and drop what waits."""
        self._move_to(now)
        self._done_s += sum(self._progress_s - each.started_at_progress for each in self._running.values())
        for part in (self._waiting, self._running, self._ends, self._kills):
            part.clear()

    def check(self) -> None:
        """Re-derive the invariants from scratch.

        Raises:
            InvariantViolated: One does not hold.
        """
        if self.num_running > self._num_places or (self._waiting and self.num_running < self._num_places):
            raise InvariantViolated(f"{self.num_running} of {self._num_places} programs run, {self.num_waiting} wait.")
        computed_s = self._done_s + sum(self._progress_s - each.started_at_progress for each in self._running.values())
        if not math.isclose(computed_s, self.busy_core_s, rel_tol=_ROUNDING, abs_tol=_ROUNDING):
            raise InvariantViolated(f"{computed_s} s were computed in {self.busy_core_s} busy core-seconds.")
        if self.busy_core_s > self._num_cores * self._now_s * (1 + _ROUNDING):
            raise InvariantViolated(f"{self._num_cores} cores were busy for {self.busy_core_s} s by {self._now_s} s.")
        for program in self._running.values():
            if self._now_s - program.started_at_s > program.limit_s * (1 + _ROUNDING):
                raise InvariantViolated(f"A program with a limit of {program.limit_s} s runs beyond it.")

    @property
    def _rate(self) -> float:
        return min(1.0, self._num_cores / len(self._running))

    def _next_end_s(self) -> float:
        if not self._ends:
            return math.inf
        return self._now_s + (self._ends[0][0] - self._progress_s) / self._rate

    def _move_to(self, now: float) -> None:
        elapsed_s, num_running = now - self._now_s, len(self._running)
        self._now_s = now
        if num_running and elapsed_s:
            self._progress_s += elapsed_s * self._rate
            self.busy_core_s += elapsed_s * min(num_running, self._num_cores)

    def _start(self) -> None:
        if not self._running:
            self._progress_s = 0.0  # so that rounding does not grow with the length of the run
        while self._waiting and len(self._running) < self._num_places:
            program = self._waiting.popleft()
            number = next(self._numbers)
            program.started_at_s, program.started_at_progress = self._now_s, self._progress_s
            self._running[number] = program
            heapq.heappush(self._kills, (self._now_s + program.limit_s, number, program))
            if program.work_s < math.inf:
                heapq.heappush(self._ends, (self._progress_s + program.work_s, number, program))

    def _end(self, entry: tuple[float, int, Program], *, was_killed: bool) -> Program:
        _, number, program = entry
        del self._running[number]
        program.ended_at_s, program.was_killed = self._now_s, was_killed
        self._done_s += self._progress_s - program.started_at_progress
        return program

    def _drop_void(self) -> None:
        for heap in (self._ends, self._kills):
            while heap and heap[0][2].is_over:
                heapq.heappop(heap)
