"""Counts what jobs ask of Slurm: programs named as its commands write a line each time, and go on as these."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from slurm.mini_cluster import MiniCluster

_COMMANDS = ("squeue", "scontrol", "scancel", "sacct", "sbatch")


class CountedCalls:
    """Of the jobs that are submitted from now on."""

    def __init__(self, cluster: MiniCluster, folder: Path) -> None:
        folder.mkdir()
        path = cluster.environment["PATH"]
        self._log = folder / "calls"
        self._log.touch()
        for name in _COMMANDS:
            job = "${SLURM_ARRAY_JOB_ID:-${SLURM_JOB_ID:-none}}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}"
            program = folder / name
            program.write_text(f'#!/bin/sh\necho "{job}" >> {self._log}\nexec {shutil.which(name, path=path)} "$@"\n')
            program.chmod(0o755)
        cluster.environment = {**cluster.environment, "PATH": f"{folder}:{path}"}

    def by_job(self) -> Counter[str]:
        """How often each job has asked, elements of an array by themselves."""
        return Counter(self._log.read_text().split())
