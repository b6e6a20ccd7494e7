"""The deadline of an attempt: whether the next step may begin, and whether the current one must be interrupted.

    not asked to leave           a step that cannot end before the time limit does not begin
    asked, with enough time      the current step runs to its end, and no other begins
    asked, with too little time  the current step is interrupted at once, because it would end too late

A step is in any case interrupted at the last moment at which a checkpoint still fits. The start of a run is interrupted
as soon as it is asked to leave: there is nothing to save yet. Before the first step of an attempt has ended, a signal
that only repeats the time limit has no effect.

Invariant: an interrupted step has changed nothing that a checkpoint holds. It calls `commit` before its update, and
from then on it is never interrupted: of a step of several updates (`trainer.num_minibatches`) only the first can be. An
interrupted trainer ends the pass that it makes (`Trainer.give_up_step`). How much time a signal leaves is in
`signals.py`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager

RECENT_STEPS = 8
"""A step may take as long as the longest of so many: long rounds come every few steps."""

RECENT_CHECKPOINTS = 8
"""Times of checkpoints, likewise, over the attempts of a job. A checkpoint between steps has two: with the handover of
GPUs to the trainer, and without."""

UNSEEN_CHECKPOINT_S = 30.0
"""Assumed for a checkpoint until one was measured."""

CHECKPOINT_SLACK = 1.5
"""A file system that was fast last time may be slower next time."""

CLOSING_S = 5.0
"""From the checkpoint to the end of the batch script, which requeues the job: the processes of two nodes ended in 1 to
3 s on the mini cluster."""


class StepInterrupted(Exception):
    """The run must leave before the work inside could end."""


class PreemptionDeadline:
    """The deadline of one attempt.

    Args:
        clock: Seconds, on the same scale as `end_time` and every deadline.
        end_time: Of the time limit; None without one.
    """

    def __init__(self, clock: Callable[[], float], end_time: float | None = None) -> None:
        self._clock = clock
        self._deadline = math.inf if end_time is None else end_time
        self._steps_s: deque[float] = deque(maxlen=RECENT_STEPS)
        self._checkpoints_s: deque[float] = deque(maxlen=RECENT_CHECKPOINTS)
        self._scope: asyncio.Timeout | None = None
        self._expected_end = math.inf
        self._step_began: float | None = None
        self._has_finished_step = False
        """In this attempt."""
        self.checkpoint_s: float | None = None
        """The longest of this attempt; None before the first."""
        self.reason = ""
        """Why the run must leave; empty until it must."""
        self.interrupted_step_s = 0.0
        """How long the interrupted step had run."""

    @property
    def longest_step_s(self) -> float:
        """Of the recent ones; 0 before the first."""
        return max(self._steps_s, default=0.0)

    @property
    def reserve_s(self) -> float:
        """What is kept for a checkpoint and for the end."""
        return CHECKPOINT_SLACK * max(self._checkpoints_s, default=UNSEEN_CHECKPOINT_S) + CLOSING_S

    def expect(self, step_s: float, checkpoints_s: Iterable[float]) -> None:
        """Plan with what earlier attempts measured: a step, 0 if none, and checkpoints, the latest last."""
        if step_s:
            self._steps_s.append(step_s)
        self._checkpoints_s.extend(checkpoints_s)

    def ask(self, reason: str, deadline: float) -> None:
        """Ask the run to leave; at `deadline` its machines are gone. An earlier deadline counts."""
        if deadline >= self._deadline and not self._has_finished_step and not self.reason:
            return
        self.reason = self.reason or reason
        self._deadline = min(self._deadline, deadline)
        self._set_alarm()

    def ask_soon(self, reason: str, grace_s: float) -> None:
        """Ask the run to leave soon: the current step may end if it does so within `grace_s`.

        Before the first step of an attempt has ended there is nothing to save, and the run leaves at once.
        """
        wait_s = self.reserve_s + grace_s if self._has_finished_step else 0.0
        self.ask(reason, self._clock() + wait_s)

    def may_begin(self, *, is_first: bool) -> bool:
        """Whether a step may begin now.

        The first one of an attempt always may: the next attempt would not have more time.
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
        """Plan with it, as with the other recent ones."""
        self._checkpoints_s.append(duration_s)
        self.checkpoint_s = max(duration_s, self.checkpoint_s or 0.0)

    @contextmanager
    def timing_checkpoint(self) -> Iterator[None]:
        """Plan with the time that the block takes."""
        began = self._clock()
        yield
        self.checkpoint_took(self._clock() - began)

    def step_ended(self) -> None:
        """Plan with how long the last step took, everything in it."""
        if self._step_began is not None:
            self._steps_s.append(self._clock() - self._step_began)
            self._step_began = None
            self._has_finished_step = True

    @asynccontextmanager
    async def while_starting(self) -> AsyncIterator[None]:
        """End what runs inside and raise `StepInterrupted` when the run must leave."""
        try:
            async with self._interruptible(math.inf):
                yield
        except StepInterrupted:
            self.reason = self.reason or "the time limit came while the run was starting"
            raise

    @asynccontextmanager
    async def in_step(self) -> AsyncIterator[None]:
        """End what runs inside and raise `StepInterrupted` when too little time is left for the step."""
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
        """Let the step run to its end: it begins to change what a checkpoint holds."""
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
        """Set when the open scope is interrupted."""
        if self._scope is None or self._scope.expired():
            return
        leave_by, now = self._leave_by(), self._clock()
        is_worth_waiting = not self.reason or self._expected_end <= leave_by
        remaining_s = max(0.0, leave_by - now) if is_worth_waiting else 0.0
        self._scope.reschedule(None if math.isinf(remaining_s) else asyncio.get_running_loop().time() + remaining_s)

    def _leave_by(self) -> float:
        """The last moment at which a checkpoint may begin."""
        return self._deadline - self.reserve_s
