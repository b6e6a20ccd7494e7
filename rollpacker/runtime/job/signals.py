"""What Slurm's signals mean to a run in a job: how much time is left, and why.

    cluster.signal near the time limit      the time limit: the time until then
    cluster.signal, otherwise               preemption, on a cluster that sends the job's own signal: the grace time
    SIGTERM, SIGURG, SIGUSR2                preemption, cancellation or `scancel --signal=URG`: the grace time

A preemption in the minutes before the time limit looks like the time limit; a run that then assumes too much time is
killed, and resumes from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.deadline import PreemptionDeadline

SIGNALS = (signal.SIGURG, signal.SIGUSR2, signal.SIGTERM)

EARLY_S = 60.0
"""Slurm checks time limits once a minute, so the signal before one may come this much too early."""

UNKNOWN_GRACE_S = 30.0
"""Slurm's default KillWait, the least that passes between SIGTERM and SIGKILL unless a site shortens it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalMeanings:
    """Reads signals in one job."""

    lead_signal: signal.Signals
    lead_s: float
    """How long before the time limit it was requested."""
    end_time: float | None
    grace_s: float

    def read(self, number: signal.Signals, now: float) -> tuple[str, float]:
        """Give the reason to leave, and until when."""
        remaining_s = math.inf if self.end_time is None else self.end_time - now
        if number is self.lead_signal and remaining_s <= self.lead_s + EARLY_S and self.end_time is not None:
            return f"{number.name} came {remaining_s:.0f} s before the time limit", self.end_time
        return f"{number.name} came, with {self.grace_s:.0f} s to leave", now + self.grace_s


def signal_meanings(allocation: Allocation, cluster: ClusterSection) -> SignalMeanings:
    """How to read the signals of this job."""
    return SignalMeanings(
        lead_signal=signal.Signals[f"SIG{cluster.signal}"],
        lead_s=cluster.signal_lead_s,
        end_time=allocation.end_time,
        grace_s=allocation.grace_s or UNKNOWN_GRACE_S,
    )


class SignalListener:
    """Handles the signals from now on, and keeps those that come before `tell`."""

    def __init__(self) -> None:
        """In the main thread."""
        self._kept: list[tuple[signal.Signals, float]] = []
        for number in SIGNALS:
            signal.signal(number, self._keep)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._kept.append((signal.Signals(number), time.time()))

    def tell(self, deadline: PreemptionDeadline, meanings: SignalMeanings, clock: Callable[[], float]) -> None:
        """Ask the run to leave at each signal; call it again after a library replaced the handlers.

        `clock` gives seconds on the scale of `end_time`.
        """
        loop = asyncio.get_running_loop()

        def heard(number: signal.Signals) -> None:
            deadline.ask(*meanings.read(number, clock()))

        for number in SIGNALS:
            loop.add_signal_handler(number, heard, number)
        kept, self._kept = self._kept, []
        for number, heard_at in kept:
            deadline.ask(*meanings.read(number, clock() - (time.time() - heard_at)))
