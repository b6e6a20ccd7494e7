"""What Slurm's signals mean to a run in a job: how much time is left, and why.

    cluster.signal near the time limit      the time limit: the time until then
    SIGURG, SIGUSR2                         preemption or `scancel --signal=URG`: the grace time
    SIGTERM, with unsaved steps             cancellation: 30 s, or the grace time where that is shorter
    SIGTERM, otherwise                      preemption: the grace time

The first line that fits counts. 30 s are Slurm's default for KillWait, the time from a cancellation's SIGTERM to its
SIGKILL; that of the site is not read, and a grace time that is unknown is taken to be as long.

Cancellation and a preemption by SIGTERM look alike. A cancelled run that assumes the grace time is killed; a preempted
one that assumes KillWait does a step again. So the steps are saved that had been finished, and were in no checkpoint,
when the signal came; a step that ends later is lost where the run was cancelled and is killed before it is saved.

A preemption in the minutes before the time limit looks like the time limit; a run that then assumes too much time is
killed, and resumes from its last checkpoint.
"""

from __future__ import annotations

import asyncio
import math
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import FrameType

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.deadline import PreemptionDeadline

SIGNALS = (signal.SIGURG, signal.SIGUSR2, signal.SIGTERM)
"""Those that Slurm sends to the head of a run."""

ALL_SIGNALS = (*SIGNALS, signal.SIGUSR1, signal.SIGINT, signal.SIGHUP)
"""Those that Slurm or a person may send to any process of a job."""

EARLY_S = 60.0
"""Slurm checks time limits once a minute, so the signal before one may come this much too early."""

UNKNOWN_GRACE_S = 30.0
"""Slurm's default KillWait, the least that passes between SIGTERM and SIGKILL unless a site shortens it."""


Meaning = Callable[[signal.Signals, float], tuple[str, float]]
"""Of a signal that comes at a time: the reason to leave, and until when."""


def meaning_of(
    allocation: Allocation,
    cluster: ClusterSection,
    number: signal.Signals,
    now: float,
    *,
    has_unsaved_steps: bool = False,
) -> tuple[str, float]:
    """Read a signal in a job: give the reason to leave, and until when.

    Args:
        allocation: Of the job.
        cluster: What the job asked for.
        number: Of the signal.
        now: When it came, on the scale of `end_time`.
        has_unsaved_steps: Whether finished steps are in no checkpoint.
    """
    end_time, grace_s = allocation.end_time, allocation.grace_s or UNKNOWN_GRACE_S
    if number is signal.SIGTERM and has_unsaved_steps:
        grace_s = min(grace_s, UNKNOWN_GRACE_S)
    remaining_s = math.inf if end_time is None else end_time - now
    is_early = remaining_s > cluster.signal_lead_s + EARLY_S
    if end_time is None or is_early or number is not signal.Signals[f"SIG{cluster.signal}"]:
        return f"{number.name} came, with {grace_s:.0f} s to leave", now + grace_s
    return f"{number.name} came {remaining_s:.0f} s before the time limit", end_time


@contextmanager
def handlers_kept(numbers: Collection[signal.Signals] = ALL_SIGNALS) -> Iterator[None]:
    """Restore the handlers of signals afterwards, in Python and below it; in the main thread alone."""
    handlers = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


@contextmanager
def signals_handled(
    numbers: Collection[signal.Signals], handler: Callable[[int, FrameType | None], object]
) -> Iterator[None]:
    """Handle signals inside. One that is ignored stays so: `nohup` and a script's background jobs rely on it."""
    with handlers_kept(numbers):
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, handler)
        yield


class SignalListener:
    """Handles the signals from now on, and keeps those that come before `tell`."""

    def __init__(self) -> None:
        """In the main thread."""
        self._kept: list[tuple[signal.Signals, float]] = []
        for number in SIGNALS:
            signal.signal(number, self._keep)

    def _keep(self, number: int, _frame: FrameType | None) -> None:
        self._kept.append((signal.Signals(number), time.time()))

    def tell(self, deadline: PreemptionDeadline, meaning: Meaning, clock: Callable[[], float]) -> None:
        """Ask the run to leave at each signal from now on, and at those that were kept.

        `clock` gives seconds on the scale of `end_time`.
        """
        loop = asyncio.get_running_loop()

        def heard(number: signal.Signals) -> None:
            deadline.ask(*meaning(number, clock()))

        for number in SIGNALS:
            loop.add_signal_handler(number, heard, number)
        kept, self._kept = self._kept, []
        for number, heard_at in kept:
            deadline.ask(*meaning(number, clock() - (time.time() - heard_at)))
