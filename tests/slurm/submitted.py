"""Runs that `hydra/launcher=slurm` has submitted, as a user submits them, and what can be seen of them from outside."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rollpacker.config.words import replaced
from rollpacker.launch.submissions import read_submission
from rollpacker.runtime.run.status import RunStatus, read_status
from slurm.mini_cluster import MiniCluster
from slurm.mini_daemons import DaemonError
from tests.e2e.launched import num_recorded_steps
from tests.e2e.processes import all_processes, engines_of, freezing_environment, is_stopped

LOOKS_PER_QUERY = 20
"""So that Slurm is asked every five seconds."""

ENDED = ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT", "PREEMPTED")


class SubmittedRun:
    """One run, in a job of its own."""

    def __init__(self, cluster: MiniCluster, run_dir: Path, *overrides: str) -> None:
        """Submit it, from the folder that `run_dir` is in."""
        self.cluster = cluster
        self.run_dir = run_dir
        self._freeze_file = run_dir.with_name("freeze")
        own = [f"run.dir={run_dir}", "hydra/launcher=slurm", "hydra.launcher.detach=true", "cluster=mini"]
        words = replaced([*own, "run.progress=plain"], overrides)
        variables = [f"{name}={value}" for name, value in freezing_environment(self._freeze_file, "rollout").items()]
        command = ["env", *variables, sys.executable, "-m", "rollpacker.cli", "train", "-m", *words]
        cluster.run(*command, cwd=run_dir.parent)
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
        self.wait_until(lambda: self.state() in ENDED, timeout_s, interval_s=1)
        return self.state()

    def wait_for_steps(self, num_steps: int) -> None:
        """Until this many steps are in the tables."""

        looks = itertools.count()

        def has_come() -> bool:
            if next(looks) % LOOKS_PER_QUERY == 0:  # a program of Slurm takes more than all else here
                assert self.state() not in ENDED, f"the job ended too early:\n{self.output()}"
            return num_recorded_steps(self.run_dir) >= num_steps

        self.wait_until(has_come)

    def wait_until(self, condition: Callable[[], bool], timeout_s: float = 600, interval_s: float = 0.25) -> None:
        """Look again and again, not too often, for that may start a program of Slurm."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen in time; {self._last_words()}"
            time.sleep(interval_s)

    def _last_words(self) -> str:
        try:
            return f"the job is {self.state()}:\n{self.output()}"
        except DaemonError:
            return f"Slurm has forgotten the job, which ended minutes ago:\n{self.output()}"

    def freeze_engines(self) -> None:
        """Let the run's engines stop in the middle of a rollout from now on, which never ends then.

        Slurm sends SIGCONT with every signal, and they stop again.
        """
        self._freeze_file.touch()

    def wait_until_frozen(self) -> None:
        """Until every engine has stopped."""

        def are_frozen() -> bool:
            own = {pid: each for pid, each in all_processes().items() if each.variable("SLURM_JOB_ID") == self.job_id}
            engines = engines_of(self.run_dir, own)
            return bool(engines) and all(map(is_stopped, engines))

        self.wait_until(are_frozen)

    def thaw(self) -> None:
        """Let engines that start from now on do all their work."""
        self._freeze_file.unlink()
