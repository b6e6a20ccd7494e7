"""The part of a process in its job: rank 0 trains, the other ranks provide their nodes.

The same program runs once per node. Outside Slurm, and for a modelled run, there is one process and no rank.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rollpacker.data.hub import with_pinned_names
from rollpacker.runtime.job.allocation import Allocation, current_allocation
from rollpacker.runtime.job.preemption import preemption_of
from rollpacker.runtime.ray.rendezvous import Rendezvous, rendezvous_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from rollpacker.config.schema import RunConfig


def train(config: RunConfig, validate: Callable[[RunConfig], object]) -> None:
    """Train, or serve the rank that trains.

    Args:
        config: Of the run. In a job it resumes unless `run.resume` is `never`; in one that Slurm has requeued, always.
        validate: Raises a `UserError` when the run is not legal here; called in the process that trains only.

    Raises:
        RollpackerError: See `rollpacker.pipeline.run`; of another rank than 0, why its node cannot be used.
    """
    allocation = current_allocation(os.environ)
    if allocation is None:
        _train(config, None, validate)
    elif (rendezvous := rendezvous_of(config, allocation)) is not None:
        _take_part(_resuming(config, allocation), allocation, rendezvous, validate)
    elif allocation.is_head:
        _train(_resuming(config, allocation), allocation, validate)


def _take_part(
    config: RunConfig, allocation: Allocation, rendezvous: Rendezvous, validate: Callable[[RunConfig], object]
) -> None:
    rendezvous.open(allocation.rank, allocation.name)
    if not allocation.is_head:
        from rollpacker.runtime.ray.node_service import serve_node

        serve_node(config, allocation, rendezvous)
        return
    try:
        _train(config, allocation, validate)
    finally:
        rendezvous.finish()


def _train(config: RunConfig, allocation: Allocation | None, validate: Callable[[RunConfig], object]) -> None:
    preemption = preemption_of(config, allocation)  # first of all: signals may come while the run is validated
    config = with_pinned_names(config, can_download=allocation is None and "SLURM_JOB_ID" not in os.environ)
    validate(config)
    from rollpacker import pipeline

    pipeline.run(config, preemption, allocation)


def _resuming(config: RunConfig, allocation: Allocation) -> RunConfig:
    if config.run.resume == "never" and not allocation.restart_count:
        return config
    return config.model_copy(update={"run": config.run.model_copy(update={"resume": "auto"})})
