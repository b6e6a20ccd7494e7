"""What can be seen from outside of a run in a job of a mini cluster, however it was submitted."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from slurm.mini_cluster import MiniCluster
from slurm.mini_daemons import DaemonError
from tests.e2e.launched import PATIENCE_S, num_recorded_steps

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED")

_LOOKS_PER_QUERY = 20
"""So that Slurm is asked every five seconds."""


class RunInJob(ABC):
    """One run, in a job of its own."""

    job_id: str
    """Once it is submitted."""

    def __init__(self, cluster: MiniCluster, run_dir: Path) -> None:
        self.cluster = cluster
        self.run_dir = run_dir

    @abstractmethod
    def output(self) -> str:
        """What it printed so far."""

    def state(self) -> str:
        """As Slurm has it now."""
        return self.cluster.job(self.job_id)["JobState"]

    def wait(self) -> str:
        """Until Slurm says that the job has ended for good, and how."""
        self.wait_until(lambda: self.state() in ENDED, interval_s=1)
        return self.state()

    def wait_for_steps(self, num_steps: int) -> None:
        """Until this many steps are in the tables."""
        looks = itertools.count()

        def has_come() -> bool:
            if next(looks) % _LOOKS_PER_QUERY == 0:  # a program of Slurm takes more than all else here
                assert self.state() not in ENDED, f"the job ended too early:\n{self.output()}"
            return num_recorded_steps(self.run_dir) >= num_steps

        self.wait_until(has_come)

    def wait_until(
        self, condition: Callable[[], bool], timeout_s: float = PATIENCE_S, interval_s: float = 0.25
    ) -> None:
        """Look again and again, not too often, for that may start a program of Slurm or read of every process."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen in time; {self._last_words()}"
            time.sleep(interval_s)

    def _last_words(self) -> str:
        try:
            return f"the job is {self.state()}:\n{self.output()}"
        except DaemonError:
            return f"Slurm has forgotten the job, which ended minutes ago:\n{self.output()}"
