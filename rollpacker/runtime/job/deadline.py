"""Whether the next step may begin, and whether the one that runs must be broken off: the machines are wanted back.

    nobody asked          a step that cannot end before the time limit is not begun
    asked, time enough    the step that runs goes on to its end, and no other begins
    asked, too little     it is broken off now, because its end would come too late

and in any case a step is broken off at the last moment at which a checkpoint still fits: it took longer than the ones
before it. Starting is broken off as soon as somebody asks: there is nothing to save yet. Before the first step of an
attempt has ended, a signal that only says what the time limit said from the beginning asks for nothing.

Invariant: what is broken off has changed nothing that a checkpoint holds. A step promises so until its update, which
it announces by `commit`; from there on it goes on to its end, whatever comes.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

RECENT_STEPS = 8
"""The longest of so many says how long a step may take: long rounds come every few steps."""

UNSEEN_CHECKPOINT_S = 30.0
"""Reckoned for a checkpoint until one was measured."""

CHECKPOINT_SLACK = 1.5
"""A file system that was fast last time may be slower next time."""

CLOSING_S = 5.0
"""From the checkpoint to the end of the batch script, which asks Slurm for another turn: the processes of two nodes
ended in 1 to 3 s on the mini cluster."""


class StepInterrupted(Exception):
    """The machines are wanted back before the work inside could end."""


class PreemptionDeadline:
    """Asks and answers for one attempt.

    Args:
        clock: Seconds, on the same scale as `end_time` and every deadline.
        end_time: Of the time limit; None without one.
    """

    def __init__(self, clock: Callable[[], float], end_time: float | None = None) -> None:
        self._clock = clock
        self._deadline = math.inf if end_time is None else end_time
        self._steps_s: deque[float] = deque(maxlen=RECENT_STEPS)
        self._checkpoint_s: float | None = None
        self._scope: asyncio.Timeout | None = None
        self._expected_end = math.inf
        self._step_began: float | None = None
        self._has_finished_step = False
        """In this attempt."""
        self.reason = ""
        """Who asked, and what is left; empty as long as nobody did."""
        self.interrupted_step_s = 0.0
        """How long the step had run that was broken off."""

    @property
    def longest_step_s(self) -> float:
        """Of the recent ones; 0 before the first."""
        return max(self._steps_s, default=0.0)

    @property
    def checkpoint_s(self) -> float | None:
        """The longest seen; None before the first."""
        return self._checkpoint_s

    @property
    def reserve_s(self) -> float:
        """What is kept for a checkpoint and for the end."""
        checkpoint_s = UNSEEN_CHECKPOINT_S if self._checkpoint_s is None else self._checkpoint_s
        return CHECKPOINT_SLACK * checkpoint_s + CLOSING_S

    def expect(self, step_s: float, checkpoint_s: float | None) -> None:
        """Reckon with what an earlier attempt measured."""
        if step_s:
            self._steps_s.append(step_s)
        self._checkpoint_s = checkpoint_s

    def ask(self, reason: str, deadline: float) -> None:
        """Ask the run to leave; at `deadline` its machines are gone. An earlier deadline counts."""
        if deadline >= self._deadline and not self._has_finished_step and not self.reason:
            return
        self.reason = self.reason or reason
        self._deadline = min(self._deadline, deadline)
        self._set_alarm()

    def ask_soon(self, reason: str, grace_s: float) -> None:
        """Ask the run to leave, though nobody takes its machines: a step that ends in so many seconds may end.

        Before the first step of an attempt has ended there is nothing to save, and nothing is waited for.
        """
        wait_s = self.reserve_s + grace_s if self._has_finished_step else 0.0
        self.ask(reason, self._clock() + wait_s)

    def may_begin(self, *, is_first: bool) -> bool:
        """Whether a step may begin now.

        The first one of an attempt is tried whatever time is left: leaving would bring the next attempt to the same
        question.
        """
        if self.reason:
            return False
        remaining_s = self._leave_by() - self._clock()
        if is_first or remaining_s >= self.longest_step_s:
            return True
        self.reason = (
            f"the next step may take {self.longest_step_s:.0f} s, and the time limit leaves "
            f"{max(0.0, remaining_s):.0f} s for it"
        )
        return False

    def checkpoint_took(self, duration_s: float) -> None:
        """Reckon with it from now on."""
        self._checkpoint_s = max(duration_s, self._checkpoint_s or 0.0)

    def step_ended(self) -> None:
        """Reckon with how long the step took that began last, everything in it."""
        if self._step_began is not None:
            self._steps_s.append(self._clock() - self._step_began)
            self._step_began = None
            self._has_finished_step = True

    @asynccontextmanager
    async def while_starting(self) -> AsyncIterator[None]:
        """Raise `StepInterrupted` when the machines are wanted back, and end what runs inside."""
        try:
            async with self._interruptible(math.inf):
                yield
        except StepInterrupted:
            self.reason = self.reason or "the time limit came while the run was starting"
            raise

    @asynccontextmanager
    async def in_step(self) -> AsyncIterator[None]:
        """Raise `StepInterrupted` when too little time is left for the step, and end what runs inside."""
        self._step_began = began = self._clock()
        try:
            async with self._interruptible(began + self.longest_step_s):
                yield
        except StepInterrupted:
            self.interrupted_step_s = self._clock() - began
            self.reason = self.reason or (
                f"the time limit came before the end of a step that had run for {self.interrupted_step_s:.0f} s"
            )
            raise

    def commit(self) -> None:
        """The step begins to change what a checkpoint holds: it is not broken off any more."""
        scope, self._scope = self._scope, None
        if scope is not None:
            scope.reschedule(None)

    @asynccontextmanager
    async def _interruptible(self, expected_end: float) -> AsyncIterator[None]:
        self._expected_end = expected_end
        try:
            async with asyncio.timeout(None) as scope:
                self._scope = scope
                self._set_alarm()
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise StepInterrupted from None
        finally:
            self._scope = None

    def _set_alarm(self) -> None:
        """Let the open scope end when it has to."""
        if self._scope is None or self._scope.expired():
            return
        leave_by, now = self._leave_by(), self._clock()
        is_worth_waiting = not self.reason or self._expected_end <= leave_by
        remaining_s = max(0.0, leave_by - now) if is_worth_waiting else 0.0
        self._scope.reschedule(None if math.isinf(remaining_s) else asyncio.get_running_loop().time() + remaining_s)

    def _leave_by(self) -> float:
        """The last moment at which a checkpoint may begin."""
        return self._deadline - self.reserve_s
