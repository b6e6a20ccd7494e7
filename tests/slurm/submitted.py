"""Runs that `hydra/launcher=slurm` has submitted, as a user submits them, and what can be seen of them from outside."""

from __future__ import annotations

import sys
from pathlib import Path

from rollpacker.config.words import replaced
from rollpacker.launch.submissions import read_submission
from rollpacker.runtime.run.status import RunStatus, read_status
from slurm.mini_cluster import MiniCluster
from tests.e2e.processes import all_processes, engines_of, freezing_environment, is_stopped
from tests.slurm.run_in_job import RunInJob


class SubmittedRun(RunInJob):
    """A run whose engines can be stopped in the middle of a rollout."""

    def __init__(self, cluster: MiniCluster, run_dir: Path, *overrides: str) -> None:
        """Submit it, from the folder that `run_dir` is in."""
        super().__init__(cluster, run_dir)
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

    def status(self) -> RunStatus:
        """As the run has it."""
        status = read_status(self.run_dir)
        assert status is not None
        return status

    def num_restarts(self) -> int:
        return int(self.cluster.job(self.job_id)["Restarts"])

    def freeze_engines(self) -> None:
        """Let the run's engines stop in the middle of a rollout from now on, which never ends then.

        Slurm sends SIGCONT with every signal, and they stop again.
        """
        self._freeze_file.touch()

    def wait_until_frozen(self) -> None:
        """Until an engine has stopped; another may have too little left to do in this rollout."""

        def is_frozen() -> bool:
            own = {pid: each for pid, each in all_processes().items() if each.variable("SLURM_JOB_ID") == self.job_id}
            return any(map(is_stopped, engines_of(self.run_dir, own)))

        self.wait_until(is_frozen)

    def thaw(self) -> None:
        """Let engines that start from now on do all their work."""
        self._freeze_file.unlink()
