"""Where the actors run, and how long anything may take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollpacker.config.sections.base import Section


class DeadlineSection(Section):
    """How long the run waits before it says what it waits for, and ends. Seconds."""

    start_s: float = Field(180, gt=0)
    """Ray, and every actor with its model loaded."""
    rollout_stall_s: float = Field(600, gt=0)
    """No response and no verdict arrived, or no verdict while the reward had responses to judge."""
    train_s: float = Field(1800, gt=0)
    """One call of the trainer."""
    weight_sync_s: float = Field(300, gt=0)
    """A new policy version on its way to the engines."""
    checkpoint_s: float = Field(600, gt=0)
    """Writing or loading one."""
    driver_stall_s: float = Field(120, gt=0)
    """The driver's own event loop, blocked by one call."""
    stop_s: float = Field(20, gt=0)
    """Closing one actor at the end; after it the actor is killed."""


class BackendSection(Section):
    """Where the actors run."""

    name: Literal["ray", "sim"] = "ray"
    """`ray` runs them on this machine, or on the nodes of a Slurm job; `sim` computes what they would do and when."""
    num_cpus: int | None = Field(None, ge=1)
    """Told to Ray for each node. null takes what Slurm allocated; outside a job the cores that this process may use, or
    what the actors reserve if that is more: on one machine engines and trainer take turns."""
    num_gpus: int | None = Field(None, ge=0)
    """Told to Ray for each node; null counts CUDA_VISIBLE_DEVICES."""
    object_store_mb: int = Field(256, ge=80)
    """Shared memory of each node for weights and responses in flight; holds at least two policy versions."""
    deadlines: DeadlineSection = DeadlineSection()
