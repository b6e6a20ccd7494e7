"""Allocations, and runs in jobs, without a Slurm."""

from dataclasses import replace
from pathlib import Path

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


class DeafListener(SignalListener):
    """Leave the signals that Slurm sends alone."""

    def __init__(self):
        pass

    def tell(self, *_):
        pass
