"""How long a run has its machines: as long as it needs them, until a person ends it, or as long as a Slurm job has.

A job's signals (`notices.py`) and its time limit ask the run to leave (`deadline.py`); its attempts are counted, and
the batch script is asked for another turn (`attempts.py`). Outside a job Ctrl-C, SIGTERM and SIGHUP ask:

    the first      the step that runs ends within seconds or is broken off, and a checkpoint is saved
    the second     the run leaves at once, without a checkpoint
    the third      it does not even wait for what it started; the guardian (`guardian.py`) ends that
"""

from __future__ import annotations

import asyncio
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import Interrupted, Preempted, RollpackerError
from rollpacker.runtime.job.attempts import JobAttempts
from rollpacker.runtime.job.deadline import PreemptionDeadline
from rollpacker.runtime.job.signals import SignalListener, signal_meanings

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.job.allocation import Allocation


SHELL_SIGNALS = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM", signal.SIGHUP: "SIGHUP"}
"""What ends a program, from a keyboard, another program, or a terminal that is closed; and how people call it."""

STEP_PATIENCE_S = 10.0
"""A person who pressed Ctrl-C waits this long for a step; a longer one is made again."""


def steps_in_words(number: int) -> str:
    """Count steps in a sentence."""
    return "1 step" if number == 1 else f"{number} steps"


class Preemption:
    """Of a run that nobody asks to leave, unless by `deadline.ask`."""

    job_id: str | None = None

    def __init__(self, deadline: PreemptionDeadline | None = None) -> None:
        self.deadline = deadline or PreemptionDeadline(asyncio.get_running_loop().time)
        self.finished_steps = 0
        self.saved_steps = 0
        """What the newest checkpoint holds; a state that needs no further saving."""

    def listen(self, note: Callable[[str], None]) -> None:
        """Hear from now on who asks; to be called again after others took the signals, as `ray.init` does.

        `note` tells a person that somebody asked.
        """

    def stop_listening(self) -> None:
        """Leave the signals to those who had them before."""

    def begin(self, attempt: int, first_step: int) -> None:  # noqa: ARG002  who counts attempts needs the number
        """An attempt begins, after so many finished steps; raises `WorldError` when there were too many."""
        self.finished_steps = self.saved_steps = first_step

    def cut_short(self, num_steps: int) -> RollpackerError | None:  # noqa: ARG002  who can be cut short says it
        """Give the error of a run that somebody ended at once; None when nobody did."""
        return None

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        """Give the error that the attempt ends by; its checkpoint is on the disk."""
        return Preempted(
            f"The run left after step {finished_steps} of {num_steps}: {self.deadline.reason}.",
            "Its checkpoint is complete.",
            "Start it again with run.resume=auto.",
        )


class ShellPreemption(Preemption):
    """Of a run that a person started, and may end: by Ctrl-C, SIGTERM, or a terminal that is closed."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self._run_dir = config.run.dir
        self._note: Callable[[str], None]
        self._task = asyncio.current_task()
        self._first: signal.Signals | None = None
        self._is_cut_short = False
        # What is ignored stays so: `nohup` and the background of a script mean it.
        handlers = {number: signal.getsignal(number) for number in SHELL_SIGNALS}
        self._handlers = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}

    def listen(self, note: Callable[[str], None]) -> None:
        self._note = note
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
        lost = f"Lost: {steps_in_words(num_lost)} since then." if num_lost else "No finished step is lost."
        saved = f"The newest checkpoint is of step {self.saved_steps}." if self.saved_steps else "It has no checkpoint."
        return self._error(
            f"{self.deadline.reason} came again and ended the run at once, after step {self.finished_steps} of "
            f"{num_steps}.",
            f"{saved} {lost}" if self.finished_steps else "Nothing was trained.",
        )

    def _error(self, problem: str, allowed: str) -> Interrupted:
        assert self._first is not None
        remedy = f"Go on with the same command and run.dir={self._run_dir} run.resume=auto."
        return Interrupted(problem, allowed, remedy, self._first)

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


class SlurmPreemption(Preemption):
    """Of a run in a Slurm job: its signals and its time limit ask, and its attempts are counted."""

    def __init__(
        self, config: RunConfig, allocation: Allocation, signals: SignalListener, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds on the scale of the time limit: since the epoch."""
        cluster = config.cluster or ClusterSection(name="slurm")
        super().__init__(PreemptionDeadline(clock, allocation.end_time))
        self.job_id = allocation.job_id
        self._signals = signals
        self._clock = clock
        self._meanings = signal_meanings(allocation, cluster)
        self._attempts = JobAttempts(config.run.dir, allocation, cluster)

    def listen(self, note: Callable[[str], None]) -> None:  # noqa: ARG002  a job's log says it when it leaves
        self._signals.tell(self.deadline, self._meanings, self._clock)

    def begin(self, attempt: int, first_step: int) -> None:
        super().begin(attempt, first_step)
        self._attempts.begin(attempt, first_step, self.deadline, self._clock())

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        return self._attempts.leave(finished_steps, num_steps, self.deadline, self._clock())


def modelled_slurm_preemption(config: RunConfig, allocation: Allocation, signals: SignalListener) -> SlurmPreemption:
    """Of a modelled run, whose time is not the job's: it hears signals, and knows no time limit."""
    return SlurmPreemption(config, replace(allocation, end_time=None), signals, asyncio.get_running_loop().time)
