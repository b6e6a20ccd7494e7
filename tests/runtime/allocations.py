"""Allocations, and runs in jobs, without a Slurm."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.job.signals import SignalListener

_ALLOCATION = Allocation(
    job_id="17",
    step_id="0",
    restart_count=0,
    rank=0,
    node_names=("node1",),
    node_name="node1",
    num_cpus=2,
    gpus=(),
    memory_bytes=None,
    end_time=None,
    requeue_file=None,
)


def allocation(tmp_path: Path, **changes) -> Allocation:
    """The head of a job that may be requeued."""
    return replace(_ALLOCATION, **{"requeue_file": tmp_path / "17.requeue", **changes})


def enter_step(monkeypatch: pytest.MonkeyPatch, job_id: str = "7") -> None:
    """Make this process the only task of a step, by the variables that Slurm sets."""
    step = {"JOB_ID": job_id, "STEP_NUM_TASKS": "1", "STEP_NODELIST": "node1", "PROCID": "0", "CPUS_ON_NODE": "4"}
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "node1")


class DeafListener(SignalListener):
    """Leave the signals that Slurm sends alone."""

    def __init__(self):
        pass

    def tell(self, *_):
        pass
