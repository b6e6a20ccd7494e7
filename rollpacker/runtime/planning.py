"""What follows from a configuration before anything starts: actors and their nodes, Ray's size, scheduler settings.

Imports neither ray nor torch: the run, `rollpacker check` and a job's dry run derive the same plan by the same code.
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
from rollpacker.runtime.allocation import Allocation

_MEBIBYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedActor:
    """One actor and what it reserves."""

    name: str
    role: str
    resources: ActorResources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedActor:
    """One actor and where it works."""

    name: str
    role: str
    resources: ActorResources
    node: int
    """Index of its node; 0 is the one that the driver runs on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The nodes of a run and what Ray is told that each one has."""

    num_nodes: int
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


def cluster_size(config: RunConfig, allocation: Allocation | None = None) -> ClusterSize:
    """Size Ray by this machine, or by what Slurm allocated; raises `ConfigError` when the actors find no place there.

    On a machine of one's own, cores may be shared, since engines and trainer take turns; in an allocation they may be
    only where `backend.num_cpus` says so. GPUs are never shared.
    """
    given = config.backend
    if allocation is None:
        reserved = math.ceil(sum(actor.resources.num_cpus for actor in planned_actors(config)))
        num_nodes, num_cpus, num_gpus = 1, max(usable_cpus(), reserved), visible_gpus()
    else:
        _check_memory(config, allocation)
        num_nodes, num_cpus, num_gpus = allocation.num_nodes, allocation.num_cpus, len(allocation.gpus)
    size = ClusterSize(
        num_nodes=num_nodes,
        num_cpus=num_cpus if given.num_cpus is None else given.num_cpus,
        num_gpus=num_gpus if given.num_gpus is None else given.num_gpus,
    )
    placed_actors(config, num_nodes=num_nodes, cpus_per_node=size.num_cpus, gpus_per_node=size.num_gpus)
    return size


def _check_memory(config: RunConfig, allocation: Allocation) -> None:
    store_bytes = config.backend.object_store_mb * _MEBIBYTE
    if allocation.memory_bytes is not None and store_bytes >= allocation.memory_bytes:
        raise ConfigError(
            f"backend.object_store_mb={config.backend.object_store_mb} fills the job's memory on each node, which is "
            f"{allocation.memory_bytes // _MEBIBYTE} MiB.",
            "Ray's shared memory counts as the job's, and the actors need some beside it.",
            "Raise cluster.memory_gb_per_node, or lower backend.object_store_mb.",
        )


def placed_actors(
    config: RunConfig, *, num_nodes: int, cpus_per_node: float, gpus_per_node: float
) -> list[PlacedActor]:
    """Give every actor its node, in the order of `planned_actors`; raises `ConfigError` when one finds no room.

    Trainer and reward work beside the driver, on node 0. Engines spread over all nodes: one after the other goes to the
    node with the fewest engines among those with room, then to the one with the most free GPUs, then CPUs.

    Args:
        config: Who takes part, and what each one reserves.
        num_nodes: All alike.
        cpus_per_node: As Ray is told: `backend.num_cpus` where it is given.
        gpus_per_node: Likewise.
    """
    *engines, trainer, reward = planned_actors(config)
    nodes = [_Room(cpus=exact(cpus_per_node), gpus=exact(gpus_per_node)) for _ in range(num_nodes)]
    nodes_by_actor: dict[str, int] = {}
    for actor in (trainer, reward):
        if not nodes[0].has_room(actor.resources):
            raise _no_room(config, actor, num_nodes, cpus_per_node, gpus_per_node)
        nodes[0].take(actor.resources)
        nodes_by_actor[actor.name] = 0
    engines_by_node: list[int] = []
    for engine in engines:
        candidates = [index for index, node in enumerate(nodes) if node.has_room(engine.resources)]
        if not candidates:
            raise _no_room(config, engine, num_nodes, cpus_per_node, gpus_per_node)
        chosen = min(
            candidates, key=lambda index: (engines_by_node.count(index), -nodes[index].gpus, -nodes[index].cpus)
        )
        nodes[chosen].take(engine.resources)
        engines_by_node.append(chosen)
    nodes_by_actor |= {engine.name: node for engine, node in zip(engines, sorted(engines_by_node), strict=True)}
    return [
        PlacedActor(name=actor.name, role=actor.role, resources=actor.resources, node=nodes_by_actor[actor.name])
        for actor in (*engines, trainer, reward)
    ]


@dataclass(slots=True, kw_only=True)
class _Room:
    """What is still free on a node."""

    cpus: Fraction
    gpus: Fraction

    def has_room(self, resources: ActorResources) -> bool:
        return exact(resources.num_cpus) <= self.cpus and exact(resources.num_gpus) <= self.gpus

    def take(self, resources: ActorResources) -> None:
        self.cpus -= exact(resources.num_cpus)
        self.gpus -= exact(resources.num_gpus)


def _no_room(
    config: RunConfig, actor: PlannedActor, num_nodes: int, cpus_per_node: float, gpus_per_node: float
) -> ConfigError:
    actors = planned_actors(config)
    num_cpus = sum(planned.resources.num_cpus for planned in actors)
    num_gpus = sum(planned.resources.num_gpus for planned in actors)
    offer = f"{cpus_per_node:g} CPUs and {gpus_per_node:g} GPUs"
    return ConfigError(
        f"The actors reserve {num_cpus:g} CPUs and {num_gpus:g} GPUs, and there is no room for {actor.name}, which "
        f"reserves {actor.resources.num_cpus:g} and {actor.resources.num_gpus:g}.",
        f"The backend offers {offer}."
        if num_nodes == 1
        else f"There are {num_nodes} nodes of {offer}; trainer and reward share the first one.",
        "Lower engine.num_engines or the resources of engine, trainer or reward; or raise backend.num_cpus, so that "
        "actors share cores; or ask Slurm for more: cluster.num_nodes, cluster.cpus_per_node, cluster.gpus_per_node.",
    )


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
