"""Reserves the places of a run's actors, and starts them there.

All reservations are one placement group: a cluster that is too small fails at once and as a whole, instead of leaving
the last actor waiting for resources that never come. Each actor is pinned to its planned node. Cores are reserved for
each actor, GPUs for the run on each node; the plan says which actor sees which of them (`Slot`), since Ray cannot let
an engine of several GPUs share some of them with the trainer.

Where engines and trainer share GPUs, the engines start first and sleep before the trainer starts. Judges that share
GPUs start between the two, and sleep too if they share the trainer's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import ray
from ray.util import placement_group
from ray.util.placement_group import PlacementGroup

from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import BackendContext
from rollpacker.protocols.reward import ColocatedJudges, RewardService
from rollpacker.protocols.trainer import TrainerRank
from rollpacker.runtime.placing.actors import ClusterSize, PlacedActor
from rollpacker.runtime.placing.host import has_mps_daemon
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import (
    colocated_engines,
    engine_gpus,
    replica_gpus,
    shared_by_judges,
    spare_nodes,
    trainer_parts,
)
from rollpacker.runtime.ray.engine_slots import EngineSlots
from rollpacker.runtime.ray.judge_slots import JudgeSlots
from rollpacker.runtime.ray.judges import RoutedReward
from rollpacker.runtime.ray.node import pin_of
from rollpacker.runtime.ray.remote import Slot, TrainerProcess, make_reward_process, make_trainer_process
from rollpacker.runtime.ray.trainer_group import TrainerGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Actors:
    """The run's actors, started."""

    slots: EngineSlots
    """Of the engines, of every degree."""
    ranks: Sequence[TrainerProcess]
    """Of the trainer; used through `trainer`."""
    trainer: TrainerGroup
    reward: RewardService
    judges: ColocatedJudges | None
    """Judges of the reward that share GPUs with the trainer; they sleep."""
    has_trainer_gpus: bool
    gpus: Mapping[EngineId, tuple[int, ...]]
    """The run's GPUs of each engine."""
    trainer_parts: tuple[tuple[int, ...], ...]
    """The run's GPUs of each part of the trainer that can work alone; none where it shares none with engines."""
    colocated_engines: tuple[EngineId, ...]
    """Engines that share GPUs with the trainer; they sleep."""
    nodes: Mapping[EngineId, int]
    """Of the engines' slots, by index."""
    spare_nodes: frozenset[int]
    """Those that the run can go on without."""

    async def close(self, deadline_s: float) -> None:
        """Close every actor; one that does not end is ended with Ray's session."""
        engines = [engine.close() for engine in self.slots.holders()]
        closings = [*engines, *(rank.close() for rank in self.ranks), self.reward.close()]
        with suppress(TimeoutError, RollpackerError):
            async with asyncio.timeout(deadline_s):
                await asyncio.gather(*closings, return_exceptions=True)


async def start_actors(config: RunConfig, size: ClusterSize, context: BackendContext) -> Actors:
    """Start every actor, in parallel where none share a GPU; when this returns, models are loaded.

    Engines of other degrees than the configured one start before it, and sleep.
    """
    placed = placed_actors(config, size)
    group = placement_group([*map(_bundle, placed), *_gpu_bundles(placed)], strategy="PACK")
    deadline_s = config.backend.deadlines.start_s
    await context.within(deadline_s, "Ray to reserve the actors' CPUs and GPUs", group.ready())
    slots = _slots(config, group, placed, context)
    degrees = {EngineId(actor.name): actor.degree for actor in placed if actor.role == "engine"}
    engines = EngineSlots(config, {name: slots[name] for name in degrees}, degrees, context)
    ranks = [make_trainer_process(actor.name, slots[actor.name]) for actor in placed if actor.role == "trainer"]
    rewards = {
        actor.name: make_reward_process(actor.name, slots[actor.name]) for actor in placed if actor.role == "reward"
    }
    judges = JudgeSlots(
        config, {EngineId(actor.name): slots[actor.name] for actor in placed if actor.role == "judge"}, context
    )
    for actor in (*ranks, *rewards.values()):
        context.add_stack_source(actor.name, actor.stacks)
    trainer = TrainerGroup(ranks, share=ray.put)
    sleeping = tuple(EngineId(name) for name in colocated_engines(config, placed))
    colocated_judges = tuple(EngineId(name) for name in colocated_engines(config, placed, "judge"))
    gpus_of_replicas = replica_gpus(config, placed, size.num_gpus)
    waiting_judges = [*judges.holders] if shared_by_judges(placed) else []
    if waiting_judges and not has_mps_daemon(os.environ):
        context.note(
            "Judges share GPUs with others, and no daemon of CUDA's Multi-Process Service answers: they take time "
            "slices in turn. `rollpacker doctor` says how to start one on every node: then they work side by side."
        )
    others = asyncio.gather(
        engines.open(),
        *(reward.start(config) for reward in rewards.values()),
        judges.open(judge for judge in judges.holders if judge not in waiting_judges),
    )
    engines_s = deadline_s * engines.num_sets_started
    if sleeping or waiting_judges:
        await context.within(engines_s, "engines and reward to start", others)
        awake = engines.engines(config.engine.tensor_parallel)
        asleep = asyncio.gather(*(engine.sleep() for name, engine in awake.items() if name in sleeping))
        await context.within(deadline_s, "engines to leave their GPUs to the trainer", asleep)
        # one after the other: an engine measures how much memory is free while it starts
        await context.within(deadline_s, "judges to start", judges.open(waiting_judges))
        await context.within(deadline_s, "judges to leave their GPUs", judges.sleep(colocated_judges))
        await context.within(deadline_s, "the trainer to start", _start_trainer(config, ranks, gpus_of_replicas))
    else:
        everyone = asyncio.gather(others, _start_trainer(config, ranks, gpus_of_replicas))
        await context.within(engines_s, "engines, trainer and reward to start", everyone)
    reward = RoutedReward(
        config.reward,
        rewards.get("reward"),
        judges.holders,
        context.note,
        replace_judge=judges.replace,
        colocated=colocated_judges,
    )
    return Actors(
        slots=engines,
        ranks=ranks,
        trainer=trainer,
        reward=reward,
        judges=reward if colocated_judges else None,
        has_trainer_gpus=any(actor.gpus for actor in placed if actor.role == "trainer"),
        gpus=engine_gpus(placed, size.num_gpus),
        trainer_parts=trainer_parts(config, placed, size.num_gpus),
        colocated_engines=sleeping,
        nodes={EngineId(actor.name): actor.node for actor in placed if actor.role == "engine"},
        spare_nodes=spare_nodes(placed, size.num_nodes),
    )


async def _start_trainer(config: RunConfig, ranks: Sequence[TrainerProcess], gpus: tuple[tuple[int, ...], ...]) -> None:
    """`gpus` are those of each replica. Where nothing is trained there is no rank."""
    if not ranks:
        return
    if len(ranks) == 1:
        await ranks[0].start(config, None)
        return
    rendezvous = await ranks[0].meeting_place()
    await asyncio.gather(
        *(
            rank.start(
                config,
                TrainerRank(rank=index, num_ranks=len(ranks), rendezvous=rendezvous, replica_gpus=gpus),
            )
            for index, rank in enumerate(ranks)
        )
    )


def _slots(
    config: RunConfig, group: PlacementGroup, placed: Sequence[PlacedActor], context: BackendContext
) -> dict[str, Slot]:
    logs = context.logs.absolute()
    beside_judges = shared_by_judges(placed)
    return {
        actor.name: Slot(
            group=group,
            index=index,
            resources=actor.resources,
            gpus=actor.gpus,
            memory_taken=config.reward.judge.memory_share if actor.name in beside_judges else 0.0,
            log=logs / f"{actor.name}.log",
        )
        for index, actor in enumerate(placed)
    }


def _bundle(actor: PlacedActor) -> dict[str, float]:
    """What one slot holds beside its GPUs; Ray refuses an amount of zero."""
    amounts = {"CPU": actor.resources.num_cpus, pin_of(actor.node): 1}
    return {name: amount for name, amount in amounts.items() if amount > 0}


def _gpu_bundles(placed: Sequence[PlacedActor]) -> list[dict[str, float]]:
    """The GPUs that the run takes of each node."""
    in_use: dict[int, set[int]] = {}
    for actor in placed:
        in_use.setdefault(actor.node, set()).update(actor.gpus)
    return [{"GPU": len(gpus), pin_of(node): 1} for node, gpus in sorted(in_use.items()) if gpus]
