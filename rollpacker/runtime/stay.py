"""How long a run may stay on its machines: as long as it likes, or as long as a Slurm job does.

A job's signals (`notices.py`) and its time limit ask the run to leave (`departure.py`); its attempts are counted, and
the batch script is asked for another turn (`attempts.py`).
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import Departed, RollpackerError
from rollpacker.runtime.attempts import JobAttempts
from rollpacker.runtime.departure import Departure
from rollpacker.runtime.notices import Ears, notices_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollpacker.config.schema import RunConfig
    from rollpacker.runtime.allocation import Allocation


class Stay:
    """Of a run that nobody asks to leave, unless by `departure.ask`."""

    job_id: str | None = None

    def __init__(self, departure: Departure | None = None) -> None:
        self.departure = departure or Departure(asyncio.get_running_loop().time)

    def listen(self) -> None:
        """Hear from now on who asks; to be called again after others took the signals, as `ray.init` does."""

    def begin(self, attempt: int, first_step: int) -> None:
        """An attempt begins, after so many finished steps; raises `WorldError` when there were too many."""

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        """Give the error that the attempt ends by; its checkpoint is on the disk."""
        return Departed(
            f"The run left after step {finished_steps} of {num_steps}: {self.departure.reason}.",
            "Its checkpoint is complete.",
            "Start it again with run.resume=auto.",
        )


class JobStay(Stay):
    """Of a run in a Slurm job: its signals and its time limit ask, and its attempts are counted."""

    def __init__(
        self, config: RunConfig, allocation: Allocation, ears: Ears, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` gives seconds on the scale of the time limit: since the epoch."""
        cluster = config.cluster or ClusterSection(name="slurm")
        super().__init__(Departure(clock, allocation.end_time))
        self.job_id = allocation.job_id
        self._ears = ears
        self._clock = clock
        self._notices = notices_of(allocation, cluster)
        self._attempts = JobAttempts(config.run.dir, allocation, cluster)

    def listen(self) -> None:
        self._ears.tell(self.departure, self._notices, self._clock)

    def begin(self, attempt: int, first_step: int) -> None:
        self._attempts.begin(attempt, first_step, self.departure, self._clock())

    def leave(self, finished_steps: int, num_steps: int) -> RollpackerError:
        return self._attempts.leave(finished_steps, num_steps, self.departure, self._clock())


def modelled_job_stay(config: RunConfig, allocation: Allocation, ears: Ears) -> JobStay:
    """Of a modelled run, whose time is not the job's: it hears signals, and knows no time limit."""
    return JobStay(config, replace(allocation, end_time=None), ears, asyncio.get_running_loop().time)
