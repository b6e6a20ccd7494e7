"""Faults in virtual time: what goes wrong, when, and to which worker.

A fault waits for its moment (so many events told to the scheduler, or a time of the run), and happens once in the life
of a run, however many attempts that has. Some happen at that moment: an engine crashes, the clock jumps. Others are
armed then, and happen to the next call that they fit: the next abort of an engine is lost, a verdict comes twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class FaultKind(StrEnum):
    """What goes wrong."""

    ENGINE_CRASH = "engine_crash"
    SLOW_ENGINE = "slow_engine"
    """Until the end of the attempt, answers come later by `amount` times the time that they took."""
    HUNG_ENGINE = "hung_engine"
    """It takes no further order and gives no further answer."""
    DEAF_ENGINE = "deaf_engine"
    """Orders to it fail, so that it counts as lost; what it runs comes all the same."""
    LOST_ABORT = "lost_abort"
    """An engine ignores an order to abort: the responses come whole, later."""
    LATE_FINISH = "late_finish"
    """One response comes `amount` seconds late."""
    DUPLICATE_FINISH = "duplicate_finish"
    """One finished response comes again, `amount` seconds later."""
    HUNG_REWARD = "hung_reward"
    """One verdict comes `amount` seconds late, perhaps beyond every limit."""
    DUPLICATE_VERDICT = "duplicate_verdict"
    """One verdict comes again, `amount` seconds later."""
    TORN_WEIGHTS = "torn_weights"
    """An engine holds other weights than were sent, and would generate with them."""
    FAILED_START = "failed_start"
    """An engine that is to take a lost one's place does not start."""
    HUNG_TRAINER = "hung_trainer"
    """A call of the trainer never returns."""
    LOST_TRAINER = "lost_trainer"
    FULL_DISK = "full_disk"
    """A checkpoint cannot be written."""
    NODE_LOSS = "node_loss"
    """`amount` engines crash at once, counted from the target; the trainer too if the first engine is among them."""
    CLOCK_JUMP = "clock_jump"
    """The driver's machine is suspended for `amount` seconds: all that was due comes at once."""
    DRIVER_KILL = "driver_kill"
    """As by kill -9: nothing is closed, flushed or told."""
    PREEMPTION_NOTICE = "preemption_notice"
    """The run is asked to leave its machines, which are gone `amount` seconds later; it goes on later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, once."""

    kind: FaultKind
    at_event: int | None = None
    """After so many events, counted over all attempts, 0 before the first weights; None goes by `at_s`."""
    at_suspension: int | None = None
    """In an asynchronous run, as engines are suspended for so many-th time, from 0 and counted over all attempts."""
    at_s: float = 0.0
    """Seconds since the run began."""
    target: int = 0
    """Number of the engine, or of the one that took its place, modulo how many there are."""
    amount: float = 0.0
