"""How the planned actors of a run take their places: all together or not at all.

All reservations are one placement group, so that a cluster too small fails at once and as a whole, instead of
leaving the last actor waiting for resources that never come. Each one is pinned to the node that the plan gave it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from ray.util import placement_group

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Surroundings
from rollpacker.runtime.actors import RemoteEngine, RemoteReward, RemoteTrainer, Seat
from rollpacker.runtime.planning import ClusterSize, PlacedActor, placed_actors
from rollpacker.runtime.ray_node import pin_of


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


async def start_actors(config: RunConfig, size: ClusterSize, surroundings: Surroundings) -> Actors:
    """Start every actor side by side; when this returns, models are loaded."""
    placed = placed_actors(config, num_nodes=size.num_nodes, cpus_per_node=size.num_cpus, gpus_per_node=size.num_gpus)
    group = placement_group([_bundle(actor) for actor in placed], strategy="PACK")
    deadline_s = config.backend.deadlines.start_s
    await surroundings.within(deadline_s, "Ray to reserve the actors' CPUs and GPUs", group.ready())
    seats = {
        actor.name: Seat(
            group=group, index=index, resources=actor.resources, log=surroundings.logs.absolute() / f"{actor.name}.log"
        )
        for index, actor in enumerate(placed)
    }
    engine_ids = [EngineId(actor.name) for actor in placed if actor.role == "engine"]
    actors = Actors(
        engines={engine_id: RemoteEngine(engine_id, seats[engine_id]) for engine_id in engine_ids},
        trainer=RemoteTrainer(seats["trainer"]),
        reward=RemoteReward(seats["reward"]),
    )
    for actor in actors.all():
        surroundings.add_witness(actor.name, actor.stacks)
    starts = asyncio.gather(*(actor.start(config) for actor in actors.all()))
    await surroundings.within(deadline_s, "engines, trainer and reward to start", starts)
    return actors


def _bundle(actor: PlacedActor) -> dict[str, float]:
    """What one seat holds; Ray refuses an amount of zero."""
    amounts = {"CPU": actor.resources.num_cpus, "GPU": actor.resources.num_gpus, pin_of(actor.node): 1}
    return {name: amount for name, amount in amounts.items() if amount > 0}
