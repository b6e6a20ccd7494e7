"""Where the actors run, and the deadlines of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, REAL_RUN, Count, PositiveSeconds, Section, WorkerCount


class DeadlineSection(Section):
    """Deadlines in seconds; a run that misses one reports what it waited for, and ends."""

    start_s: PositiveSeconds = 180
    """Ray, and every actor with its model loaded."""
    rollout_stall_s: PositiveSeconds = 600
    """Without any response or reward, or without any reward while responses wait for one. On top comes the longest
    time that an environment may take for a call, or a `reward.url` until the first verdict of a request, which it may
    refuse in ever smaller parts."""
    engine_call_s: PositiveSeconds = 300
    """One call to an engine: to take requests, to sleep, to wake, to give its statistics. An engine that misses it is
    lost and replaced; the run goes on."""
    train_s: PositiveSeconds = 1800
    """One call of the trainer."""
    weight_sync_s: PositiveSeconds = 300
    """A new policy version on its way to the engines."""
    checkpoint_s: PositiveSeconds = 600
    """Writing or loading one."""
    driver_stall_s: PositiveSeconds = 120
    """The driver's own event loop, blocked by one call."""
    stop_s: PositiveSeconds = 20
    """Closing one actor at the end; then it is killed."""


class BackendSection(Section):
    """Where the actors run."""

    name: Literal["ray", "sim"] = "ray"
    """`ray` runs them on this machine, or on the nodes of a Slurm job; `sim` computes what they would do and when."""
    num_cpus: Annotated[Count | None, REAL_RUN, NOT_IN_FINGERPRINT] = Field(None, ge=1)
    """Given to Ray for each node. null takes what Slurm allocated; outside a job the cores that this process may use,
    or what the actors reserve if that is more: on one machine engines and trainer take turns."""
    num_gpus: Annotated[WorkerCount | None, REAL_RUN, NOT_IN_FINGERPRINT] = None
    """Given to Ray for each node. null counts those that CUDA_VISIBLE_DEVICES names; where it is not set, all that the
    machine has."""
    object_store_mb: Annotated[Count, REAL_RUN, NOT_IN_FINGERPRINT] = Field(256, ge=80)
    """Shared memory of each node for weights and responses in flight; holds at least two policy versions."""
    deadlines: Annotated[DeadlineSection, NOT_IN_FINGERPRINT] = DeadlineSection()
