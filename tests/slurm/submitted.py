"""Runs that `hydra/launcher=slurm` has submitted, as a user submits them, and what can be seen of them from outside."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rollpacker.config.words import replaced
from rollpacker.launch.submissions import read_submission
from rollpacker.runtime.run.status import RunStatus, read_status
from slurm.mini_cluster import MiniCluster
from tests.e2e.launched import num_recorded_steps
from tests.e2e.processes import all_processes, engines_of

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED")


class SubmittedRun:
    """One run, in a job of its own."""

    def __init__(self, cluster: MiniCluster, run_dir: Path, *overrides: str) -> None:
        """Submit it, from the folder that `run_dir` is in."""
        self.cluster = cluster
        self.run_dir = run_dir
        own = [f"run.dir={run_dir}", "hydra/launcher=slurm", "hydra.launcher.detach=true", "cluster=mini"]
        words = replaced([*own, "run.progress=plain"], overrides)
        cluster.run(sys.executable, "-m", "rollpacker.cli", "train", "-m", *words, cwd=run_dir.parent)
        submission = read_submission(run_dir)
        assert submission is not None
        self.job_id = submission.job_id
        self._logs = submission.logs

    def output(self) -> str:
        return "\n".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def state(self) -> str:
        """As Slurm has it now."""
        return self.cluster.job(self.job_id)["JobState"]

    def status(self) -> RunStatus:
        """As the run has it."""
        status = read_status(self.run_dir)
        assert status is not None
        return status

    def num_restarts(self) -> int:
        return int(self.cluster.job(self.job_id)["Restarts"])

    def wait(self, timeout_s: float = 600) -> str:
        """Until Slurm says that the job has ended for good, and how."""
        self.wait_until(lambda: self.state() in ENDED, timeout_s)
        return self.state()

    def wait_for_steps(self, num_steps: int) -> None:
        """Until this many steps are in the tables."""

        def has_come() -> bool:
            assert self.state() not in ENDED, f"the job ended too early:\n{self.output()}"
            return num_recorded_steps(self.run_dir) >= num_steps

        self.wait_until(has_come)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 600) -> None:
        """Look four times a second, for that may start a program of Slurm."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, (
                f"it did not happen in time; the job is {self.state()}:\n{self.output()}"
            )
            time.sleep(0.25)

    def freeze_engines(self) -> None:
        """Let the run's engines stop in the middle of what they do, so that its rollout never ends."""
        own = {pid: each for pid, each in all_processes().items() if each.variable("SLURM_JOB_ID") == self.job_id}
        processes = [os.pidfd_open(pid) for pid in engines_of(self.run_dir, own)]
        assert processes
        _stop(processes)
        threading.Thread(target=_keep_stopped, args=[processes], daemon=True).start()


def _keep_stopped(processes: list[int]) -> None:
    """Until they are killed: Slurm sends SIGCONT with every signal."""
    while processes:
        _stop(processes)
        time.sleep(0.02)


def _stop(processes: list[int]) -> None:
    """Stop those that live, and forget the others."""
    for process in list(processes):
        try:
            signal.pidfd_send_signal(process, signal.SIGSTOP)
        except ProcessLookupError:
            processes.remove(process)
            os.close(process)
