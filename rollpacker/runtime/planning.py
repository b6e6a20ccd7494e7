"""What follows from a configuration before anything starts: the actors, the size of Ray, the scheduler's settings.

Imports neither ray nor torch: the run and `rollpacker check` derive the same plan by the same code.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from rollpacker.config.schema import ActorResources, RunConfig, exact
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.core.settings import (
    ParallelismSettings,
    RewardBudgetSettings,
    SchedulerSettings,
    StreamSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedActor:
    """One actor and what it reserves."""

    name: str
    role: str
    resources: ActorResources


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """What Ray is told that this machine has."""

    num_cpus: int
    num_gpus: int


def planned_actors(config: RunConfig) -> list[PlannedActor]:
    """Every actor of the run, in the order in which they start."""
    engines = [
        PlannedActor(name=f"engine-{index}", role="engine", resources=config.engine.resources)
        for index in range(config.engine.num_engines)
    ]
    trainer = PlannedActor(name="trainer", role="trainer", resources=config.trainer.resources)
    reward = PlannedActor(name="reward", role="reward", resources=config.reward.resources)
    return [*engines, trainer, reward]


def usable_cpus() -> int:
    """Cores that this process may use, which on a shared node is less than the machine has."""
    return len(os.sched_getaffinity(0))


def visible_gpus() -> int:
    """GPUs that CUDA_VISIBLE_DEVICES names."""
    return sum(1 for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip())


def cluster_size(config: RunConfig) -> ClusterSize:
    """Size the local Ray; raises `ConfigError` when the actors reserve more than there is.

    Cores may be shared, since engines and trainer take turns; GPUs may not.
    """
    actors = planned_actors(config)
    cpus_reserved = sum(actor.resources.num_cpus for actor in actors)
    gpus_reserved = sum(actor.resources.num_gpus for actor in actors)
    given = config.backend
    num_cpus = max(usable_cpus(), math.ceil(cpus_reserved)) if given.num_cpus is None else given.num_cpus
    num_gpus = visible_gpus() if given.num_gpus is None else given.num_gpus
    if cpus_reserved > num_cpus or gpus_reserved > num_gpus:
        raise ConfigError(
            f"The actors reserve {cpus_reserved:g} CPUs and {gpus_reserved:g} GPUs.",
            f"The backend offers {num_cpus} CPUs and {num_gpus} GPUs.",
            "Lower engine.num_engines or the resources of engine, trainer or reward, or raise backend.num_cpus.",
        )
    return ClusterSize(num_cpus=num_cpus, num_gpus=num_gpus)


def scheduler_settings(
    config: RunConfig,
    num_prompts_by_domain: Mapping[Domain, int],
    degrees: Sequence[int] = (1,),
    replicas: Sequence[tuple[int, ...]] = (),
) -> SchedulerSettings:
    """What the scheduler is told; without `data.domain_weights` every domain has its share of the prompts.

    Args:
        config: Which machines take part.
        num_prompts_by_domain: In the order of the data.
        degrees: Tensor-parallel degrees of which the backend has engines, the first one awake. The planner has nothing
            to choose among fewer than two.
        replicas: The GPUs of each training replica, where engines work on them too. Without, none can be lent.
    """
    weights = {Domain(name): exact(weight) for name, weight in config.data.domain_weights.items()} or {
        domain: Fraction(count) for domain, count in num_prompts_by_domain.items()
    }
    return SchedulerSettings(
        batching=config.system.batching,
        num_prompts=config.rollout.num_prompts,
        num_responses=config.rollout.num_responses,
        eta_prompts=exact(config.system.eta_prompts),
        eta_responses=exact(config.system.eta_responses),
        overlap_rewards=config.system.reward != "batch",
        domain_weights=tuple(weights.items()),
        reward_budget=RewardBudgetSettings() if config.system.reward == "scheduled" else None,
        parallelism=(
            ParallelismSettings(degrees=tuple(sorted(degrees)), initial=degrees[0])
            if config.system.planner and len(degrees) > 1
            else None
        ),
        stream=(
            StreamSettings(replicas=tuple(replicas), max_response_tokens=config.rollout.max_response_tokens)
            if config.system.stream and len(replicas) > 1
            else None
        ),
    )


def hardware_name(*, has_gpus: bool) -> str:
    """What this machine calls its GPUs, or its processor and how many cores of it this process may use."""
    if has_gpus:
        names = [_line_of(file, "Model") for file in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))]
        return f"{len(names)} x {names[0]}" if names and names[0] else "GPUs of unknown name"
    return f"{_line_of(Path('/proc/cpuinfo'), 'model name') or platform.machine()}, {usable_cpus()} cores"


def _line_of(file: Path, label: str) -> str:
    """The value of the first line `label: value`; empty when there is none."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == label:
                return value.strip()
    return ""
