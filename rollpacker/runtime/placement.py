"""Which actors a run has, what each reserves, and how they all start together or not at all.

All reservations are one placement group, so that a cluster too small fails at once and as a whole, instead of
leaving the last actor waiting for resources that never come.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ray.util import placement_group

from rollpacker.config.schema import ActorResources, RunConfig
from rollpacker.core.errors import ConfigError, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.runtime.actors import RemoteEngine, RemoteReward, RemoteTrainer, Seat
from rollpacker.runtime.watchdog import Watchdog


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """The run's actors, started."""

    engines: Mapping[EngineId, RemoteEngine]
    trainer: RemoteTrainer
    reward: RemoteReward

    def all(self) -> list[RemoteEngine | RemoteTrainer | RemoteReward]:
        return [*self.engines.values(), self.trainer, self.reward]

    async def close(self, deadline_s: float) -> None:
        """Let every actor end in order; one that does not is ended with Ray's session."""
        closings = [actor.close() for actor in self.all()]
        with suppress(TimeoutError, RollpackerError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*closings, return_exceptions=True)


async def start_actors(config: RunConfig, logs: Path, watchdog: Watchdog) -> Actors:
    """Start every actor side by side; when this returns, models are loaded."""
    planned = planned_actors(config)
    group = placement_group([_bundle(actor.resources) for actor in planned], strategy="PACK")
    deadline_s = config.backend.deadlines.start_s
    await watchdog.within(deadline_s, "Ray to reserve the actors' CPUs and GPUs", group.ready())
    seats = {
        actor.name: Seat(group=group, index=index, resources=actor.resources, log=logs / f"{actor.name}.log")
        for index, actor in enumerate(planned)
    }
    engine_ids = [EngineId(actor.name) for actor in planned if actor.role == "engine"]
    actors = Actors(
        engines={engine_id: RemoteEngine(engine_id, seats[engine_id]) for engine_id in engine_ids},
        trainer=RemoteTrainer(seats["trainer"]),
        reward=RemoteReward(seats["reward"]),
    )
    for actor in actors.all():
        watchdog.add_witness(actor.name, actor.stacks)
    starts = asyncio.gather(*(actor.start(config) for actor in actors.all()))
    await watchdog.within(deadline_s, "engines, trainer and reward to start", starts)
    return actors


def _bundle(resources: ActorResources) -> dict[str, float]:
    """What one seat holds; Ray refuses an amount of zero."""
    amounts = {"CPU": resources.num_cpus, "GPU": resources.num_gpus}
    return {name: amount for name, amount in amounts.items() if amount > 0}
