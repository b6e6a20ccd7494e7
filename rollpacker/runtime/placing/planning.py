"""Places each actor of a run: its node and its GPUs there, derived before anything starts.

Without maps in `placement` actors are placed by what they reserve (`by_resources`), else by the maps (`by_maps`).
Either way an engine stays within one node, as do the ranks of one tensor-parallel group of the trainer, and every actor
knows its GPUs by number: the run decides the places, not Ray.

Imports neither ray nor torch: the run, `rollpacker check` and a job's dry run derive the same places by the same code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from itertools import groupby

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.resources import ActorResources
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.job.allocation import Allocation
from rollpacker.runtime.placing.actors import (
    ClusterSize,
    PlacedActor,
    planned_actors,
)
from rollpacker.runtime.placing.by_maps import mapped
from rollpacker.runtime.placing.by_resources import spread
from rollpacker.runtime.placing.capacity import Capacity, check_capacity
from rollpacker.runtime.placing.fleets import check_degrees, degrees_of
from rollpacker.runtime.placing.host import usable_cpus, usable_memory, visible_gpus


def cluster_size(config: RunConfig, allocation: Allocation | None) -> ClusterSize:
    """Size Ray by this machine, or by the Slurm allocation; raises `ConfigError` when the actors do not fit.

    Outside Slurm cores may be shared, since engines and trainer work in turn; in an allocation only where
    `backend.num_cpus` says so. GPUs are shared only where `placement` says so.
    """
    given = config.backend
    check_capacity(config, _capacity(allocation))
    if allocation is None:
        reserved = math.ceil(sum(actor.resources.num_cpus for actor in planned_actors(config)))
        num_nodes, num_cpus, num_gpus = 1, max(usable_cpus(), reserved), visible_gpus()
    else:
        _check_environment_nodes(config, allocation)
        num_nodes, num_cpus, num_gpus = allocation.num_nodes, allocation.num_cpus, len(allocation.gpus)
    size = ClusterSize(
        num_nodes=num_nodes,
        num_cpus=num_cpus if given.num_cpus is None else given.num_cpus,
        num_gpus=num_gpus if given.num_gpus is None else given.num_gpus,
    )
    placed_actors(config, size)
    return size


def _check_environment_nodes(config: RunConfig, allocation: Allocation) -> None:
    if allocation.num_environment_nodes < config.num_environment_nodes:
        raise ConfigError(
            f"cluster.environment_nodes.num_nodes={config.num_environment_nodes}, and the job has "
            f"{allocation.num_environment_nodes} of them.",
            "They are the second component of a heterogeneous job, as hydra/launcher=slurm submits it.",
            "Launch the run so, or set cluster.environment_nodes.num_nodes=0.",
        )


def held_gpus(config: RunConfig, allocation: Allocation | None) -> int:
    """How many GPUs nobody else can have while a real run lasts: the job's, or this machine's if it uses any."""
    if allocation is not None:
        return allocation.num_nodes * len(allocation.gpus)
    uses_any = any(actor.resources.num_gpus for actor in planned_actors(config))
    return visible_gpus() if uses_any else 0


def _capacity(allocation: Allocation | None) -> Capacity:
    if allocation is None:
        return Capacity(where="this machine", num_nodes=1, num_cores=usable_cpus(), memory_bytes=usable_memory())
    return Capacity(
        where="the job",
        num_nodes=allocation.num_nodes,
        num_cores=allocation.num_cpus,
        memory_bytes=allocation.memory_bytes,
    )


def placed_actors(config: RunConfig, size: ClusterSize) -> list[PlacedActor]:
    """Give every actor its node and its GPUs there, in the order of `planned_actors`; then engines of other degrees.

    Raises:
        ConfigError: There is no room for one, or the maps fit neither the nodes nor the actors.
    """
    check_degrees(config)
    maps = config.placement.maps
    placed = spread(config, size) if maps is None else mapped(config, size, *maps)
    engines = [actor for actor in placed if actor.role == "engine"]
    others = [actor for degree in degrees_of(config)[1:] for actor in _engines_in_place_of(config, engines, degree)]
    return placed + others


def _engines_in_place_of(config: RunConfig, engines: Sequence[PlacedActor], degree: int) -> Iterator[PlacedActor]:
    """Give engines of another degree the GPUs of those of the configured one, several of one node or a part of one.

    They reserve no cores: they work while the others sleep or have no process.
    """
    configured = config.engine.tensor_parallel
    number = itertools.count()
    for _, on_node in groupby(engines, key=lambda engine: engine.node):
        here = list(on_node)
        num_together = max(degree // configured, 1)
        if len(here) % num_together:
            raise ConfigError(
                f"engine.degrees={list(config.engine.degrees)}: node {here[0].node} has {counted(len(here), 'engine')} "
                f"of engine.tensor_parallel={configured}, which do not make whole engines of degree {degree}.",
                "An engine stays within one node.",
                f"Leave {degree} out of engine.degrees, or give each node a multiple of {num_together} engines.",
            )
        for begin in range(0, len(here), num_together):
            gpus = [gpu for engine in here[begin : begin + num_together] for gpu in engine.gpus]
            num_parts = max(configured // degree, 1)
            for part in range(num_parts):
                size = len(gpus) // num_parts
                yield PlacedActor(
                    name=f"engine-tp{degree}-{next(number)}",
                    role="engine",
                    resources=ActorResources(num_cpus=0, num_gpus=0),
                    node=here[0].node,
                    gpus=tuple(sorted(gpus[part * size : (part + 1) * size])),
                    degree=degree,
                )
