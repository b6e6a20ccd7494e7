"""Which actors share GPUs, and which GPUs of the run belong to what: views of placed actors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Literal

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.runtime.placing.actors import PlacedActor


def colocated_engines(
    config: RunConfig, placed: Sequence[PlacedActor], role: Literal["engine", "judge"] = "engine"
) -> tuple[str, ...]:
    """Engines that share GPUs with the trainer, so that one sleeps while the other works; or judges beside them.

    A trainer that shares none with engines never sleeps, so no judges sleep either.
    """
    if config.placement.maps is None:
        return ()  # a reserved share of a GPU belongs to its actor all the time
    of_trainer = {(actor.node, gpu) for actor in placed if actor.role == "trainer" for gpu in actor.gpus}
    sharing = [actor for actor in placed if any((actor.node, gpu) in of_trainer for gpu in actor.gpus)]
    if not any(actor.role == "engine" for actor in sharing):
        return ()
    return tuple(actor.name for actor in sharing if actor.role == role)


def spare_nodes(placed: Sequence[PlacedActor], num_nodes: int) -> frozenset[int]:
    """Nodes that hold at most engines and environments: a run can go on without them. The driver's own is none."""
    needed = {actor.node for actor in placed if actor.role != "engine"}
    return frozenset(range(1, num_nodes)) - needed


def trainer_parts(config: RunConfig, placed: Sequence[PlacedActor], gpus_per_node: int) -> tuple[tuple[int, ...], ...]:
    """The run's GPUs of each part of the trainer that can work alone; none where it shares no GPU with engines."""
    if not colocated_engines(config, placed):
        return ()
    return _gpus_by(config.trainer.part_of, placed, gpus_per_node)


def replica_gpus(config: RunConfig, placed: Sequence[PlacedActor], gpus_per_node: int) -> tuple[tuple[int, ...], ...]:
    """The run's GPUs of each of the trainer's data-parallel replicas."""
    return _gpus_by(config.trainer.replica_of, placed, gpus_per_node)


def _gpus_by(
    number_of: Callable[[int], int], placed: Sequence[PlacedActor], gpus_per_node: int
) -> tuple[tuple[int, ...], ...]:
    """Group the trainer's GPUs by a number of each rank, ascending."""
    gpus: dict[int, list[int]] = {}
    for rank, actor in enumerate(actor for actor in placed if actor.role == "trainer"):
        gpus.setdefault(number_of(rank), []).extend(run_gpus(actor, gpus_per_node))
    return tuple(tuple(gpus[number]) for number in sorted(gpus))


def engine_gpus(
    placed: Sequence[PlacedActor], gpus_per_node: int, degree: int | None = None
) -> dict[EngineId, tuple[int, ...]]:
    """The run's GPUs of each engine, or of each one of a degree."""
    return {
        EngineId(actor.name): run_gpus(actor, gpus_per_node)
        for actor in placed
        if actor.role == "engine" and degree in {None, actor.degree}
    }


def shared_by_judges(placed: Sequence[PlacedActor]) -> frozenset[str]:
    """Actors that share a GPU with a judge by the maps, judges included."""
    judges = [actor for actor in placed if actor.role == "judge"]
    of_judges = {(judge.node, gpu) for judge in judges for gpu in judge.gpus}
    others = [actor for actor in placed if actor.role != "judge"]
    sharing = {actor.name: {(actor.node, gpu) for gpu in actor.gpus} & of_judges for actor in others}
    shared = set().union(*sharing.values())
    return frozenset(
        [
            *(name for name, gpus in sharing.items() if gpus),
            *(judge.name for judge in judges if any((judge.node, gpu) in shared for gpu in judge.gpus)),
        ]
    )


def as_ranges(names: Sequence[str]) -> list[str]:
    """Shorten a list of actors: consecutive numbers become one range."""

    def run_of(place: tuple[int, str]) -> tuple[str, int]:
        index, name = place
        stem, _, number = name.rpartition("-")
        return (stem, int(number) - index) if number.isdecimal() else (name, 0)

    ranges: list[str] = []
    for _, run in groupby(enumerate(names), key=run_of):
        first, *others = [name for _, name in run]
        ranges.append(f"{first} to {others[-1]}" if others else first)
    return ranges


def run_gpus(actor: PlacedActor, gpus_per_node: int) -> tuple[int, ...]:
    """Number an actor's GPUs as those of the run: node after node."""
    return tuple(actor.node * gpus_per_node + gpu for gpu in actor.gpus)
