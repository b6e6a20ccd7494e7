"""Preemption: how long a run has its machines, and how it ends when they are taken or a person ends it.

One object per run, made by `preemption_of`. It joins the signals (`signals.py`), the deadline that they and the time
limit set (`deadline.py`), and the attempts of a Slurm job (`attempts.py`).

    from a shell    Ctrl-C, SIGTERM and SIGHUP end the run:
        the first       the step in progress ends within seconds or is interrupted, and a checkpoint is saved
        the second      the run leaves at once, without a checkpoint
        the third       it does not even wait for the processes that it started; the guardian (`guardian.py`) ends them
    in a job        Slurm's signals, SIGTERM among them, and the time limit preempt it, and the batch script is asked to
                    requeue it; Ctrl-C and SIGHUP (`srun --pty bash`) end it as from a shell
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.words import counted
from rollpacker.core.errors import Interrupted, Preempted, RollpackerError
from rollpacker.runtime.job.attempts import JobAttempts
from rollpacker.runtime.job.deadline import PreemptionDeadline
from rollpacker.runtime.job.signals import SignalListener, meaning_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.job.allocation import Allocation


SHELL_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""What ends a program, from a keyboard, another program, or a closed terminal; with the name that messages use."""

STEP_PATIENCE_S = 10.0
"""How long a step may still run after Ctrl-C; a longer one is done again."""


def loop_time() -> float:
    """Seconds on the running event loop's clock, which may be virtual."""
    return asyncio.get_running_loop().time()


def preemption_of(config: RunConfig, allocation: Allocation | None) -> Preemption:
    """Make the preemption of a run; in a job its signals are kept from now on (call it in the main thread)."""
    if allocation is None:
        return ShellPreemption(config)
    if config.backend.name == "sim":  # its time is not the job's: it knows no time limit
        return SlurmPreemption(config, replace(allocation, end_time=None), clock=loop_time)
    return SlurmPreemption(config, allocation)


def how_to_go_on(run_dir: str | None) -> str:
    """Say how an interrupted run is resumed; `run_dir` is its run.dir as a shell takes it, or None to leave it out."""
    also = f"; if it names no run.dir, also run.dir={run_dir}" if run_dir is not None else ""
    return f"Go on with the same command and run.resume=auto{also}."


class Preemption:
    """Of a run that no signal ends: only `deadline.ask` does."""

    job_id: str | None = None

    def __init__(self, deadline: PreemptionDeadline | None = None) -> None:
        self.deadline = deadline or PreemptionDeadline(loop_time)
        self.finished_steps = 0
        self.saved_steps = 0
        """What the newest checkpoint holds."""

    def listen(self, note: Callable[[str], None]) -> None:
        """Handle signals from now on.

        `note` reports a signal to the person who follows the run.
        """

    def stop_listening(self) -> None:
        """Restore the handlers that were there before: the attempt has ended."""

    def begin(self, attempt: int, first_step: int) -> None:  # noqa: ARG002  a job counts attempts
        """Begin an attempt, after so many finished steps; raises `WorldError` after too many futile ones."""
        self.finished_steps = self.saved_steps = first_step

    def cut_short(self, num_steps: int) -> RollpackerError | None:  # noqa: ARG002  for a run from a shell
        """Give the error of a run that a second signal ended; None without one."""
        return None

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        """Give the error that ends the attempt; its checkpoint is on the disk."""
        return Preempted(
            f"The run left after step {finished_steps} of {num_steps}: {self.deadline.reason}.",
            "Its checkpoint is complete.",
            "Start it again with run.resume=auto.",
        )


class ShellPreemption(Preemption):
    """Of a run that a person ends by signals."""

    def __init__(
        self,
        config: RunConfig,
        deadline: PreemptionDeadline | None = None,
        signals: Iterable[signal.Signals] = SHELL_SIGNALS,
    ) -> None:
        """Take the signals that a person sends, of `SHELL_SIGNALS`."""
        super().__init__(deadline)
        self._run_dir = config.run.dir
        self._numbers = tuple(signals)
        self._note: Callable[[str], None] = lambda _text: None
        self._task: asyncio.Task[object] | None = None
        self._first: signal.Signals | None = None
        self._is_cut_short = False
        self._handlers: dict[signal.Signals, Any] = {}
        """Those that were there before."""

    def listen(self, note: Callable[[str], None]) -> None:
        self._note, self._task = note, asyncio.current_task()
        # a signal that is ignored stays so: `nohup` and a script's background jobs rely on it
        handlers = {number: signal.getsignal(number) for number in self._numbers}
        self._handlers = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
        loop = asyncio.get_running_loop()
        for number in self._handlers:
            loop.add_signal_handler(number, self._hear, number)

    def stop_listening(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        what = f"the run after step {finished_steps} of {num_steps}" if finished_steps else "the run before any step"
        return self._error(
            f"{self.deadline.reason} ended {what}.",
            "Its checkpoint is complete; no finished step is done again." if finished_steps else "Nothing is lost.",
        )

    def cut_short(self, num_steps: int) -> RollpackerError | None:
        if not self._is_cut_short:
            return None
        num_lost = self.finished_steps - self.saved_steps
        lost = f"Lost: {counted(num_lost, 'step')} since then." if num_lost else "No finished step is lost."
        saved = f"The newest checkpoint is of step {self.saved_steps}." if self.saved_steps else "It has no checkpoint."
        return self._error(
            f"{self.deadline.reason} came again and ended the run at once, after step {self.finished_steps} of "
            f"{num_steps}.",
            f"{saved} {lost}" if self.finished_steps else "Nothing was trained.",
        )

    def _error(self, problem: str, allowed: str) -> Interrupted:
        assert self._first is not None
        return Interrupted(problem, allowed, how_to_go_on(str(self._run_dir)), self._first)

    def _hear(self, number: signal.Signals) -> None:
        if self._first is None:
            self._first = number
            self.deadline.ask_soon(SHELL_SIGNALS[number], STEP_PATIENCE_S)
            if self.finished_steps > self.saved_steps:
                saving = f"saving a checkpoint of step {self.finished_steps}, or of the one that runs"
            else:
                saving = "ending the run"
            self._note(f"{SHELL_SIGNALS[number]}: {saving}. Once more leaves at once.")
        elif not self._is_cut_short:
            self._is_cut_short = True
            assert self._task is not None
            self._task.cancel()
        else:
            raise KeyboardInterrupt


class SlurmPreemption(ShellPreemption):
    """Of a run in a Slurm job, which a person may have started from a shell on its node."""

    def __init__(
        self,
        config: RunConfig,
        allocation: Allocation,
        *,
        clock: Callable[[], float] = time.time,
        signals: SignalListener | None = None,
    ) -> None:
        """`clock` gives seconds on the scale of the time limit: since the epoch."""
        cluster = config.cluster or ClusterSection(name="slurm")
        super().__init__(config, PreemptionDeadline(clock, allocation.end_time), (signal.SIGINT, signal.SIGHUP))
        self.job_id = allocation.job_id
        self._of_slurm = signals or SignalListener()
        self._clock = clock
        self._allocation = allocation
        self._cluster = cluster
        self._attempts = JobAttempts(config.run.dir, allocation, cluster)

    def listen(self, note: Callable[[str], None]) -> None:
        super().listen(note)
        self._of_slurm.tell(self.deadline, self._meaning, self._clock)

    def begin(self, attempt: int, first_step: int) -> None:
        super().begin(attempt, first_step)
        self._attempts.begin(attempt, first_step, self.deadline, self._clock())

    def stop_listening(self) -> None:
        super().stop_listening()
        if why := self._attempts.end(self.saved_steps):
            self._note(why)

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        if self._first is not None:
            return super().leave(finished_steps, num_steps)
        return self._attempts.leave(finished_steps, num_steps, self.deadline, self._clock())

    def _meaning(self, number: signal.Signals, now: float) -> tuple[str, float]:
        has_unsaved_steps = self.finished_steps > self.saved_steps
        return meaning_of(self._allocation, self._cluster, number, now, has_unsaved_steps=has_unsaved_steps)
