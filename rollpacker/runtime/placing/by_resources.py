"""Places actors by what they reserve (`placement=none`): a GPU is shared only by actors that reserve a share of one.

Trainer and reward are placed beside the driver, on node 0, further ranks of the trainer and judges where there is room;
engines are spread over the nodes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.config.sections.resources import ActorResources
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.actors import (
    ClusterSize,
    PlacedActor,
    planned_actors,
)


def spread(config: RunConfig, size: ClusterSize) -> list[PlacedActor]:
    """Place trainer and reward first, then judges where most is free, then one engine after the other.

    Each engine goes to the node with the fewest engines among those with room, then to the one with the most free GPUs,
    then CPUs; neighbours in number are neighbours in place.
    """
    actors = planned_actors(config)
    engines = [actor for actor in actors if actor.role == "engine"]
    ranks = [actor for actor in actors if actor.role == "trainer"]
    judges = [actor for actor in actors if actor.role == "judge"]
    nodes = [_Room(size) for _ in range(size.num_nodes)]
    slots: dict[str, tuple[int, tuple[int, ...]]] = {}
    groups = list(_groups(ranks, config.trainer.tensor_parallel))
    for group, candidates in (
        *((group, nodes[:1]) for group in groups[:1]),
        *(([actor], nodes[:1]) for actor in actors if actor.role == "reward"),
        *((group, nodes) for group in groups[1:]),
    ):
        index = next((index for index, node in enumerate(candidates) if node.has_room(group)), None)
        if index is None:
            raise _no_room(config, group[0], size)
        slots |= {actor.name: (index, nodes[index].take(actor.resources)) for actor in group}
    for judge in judges:
        with_room = [index for index, node in enumerate(nodes) if node.has_room([judge])]
        if not with_room:
            raise _no_room(config, judge, size)
        index = max(with_room, key=lambda index: (nodes[index].free_gpus, nodes[index].free_cpus))
        slots[judge.name] = (index, nodes[index].take(judge.resources))
    engine_places: list[tuple[int, tuple[int, ...]]] = []
    num_engines_on = [0] * size.num_nodes
    for engine in engines:
        candidate_indices = [index for index, node in enumerate(nodes) if node.has_room([engine])]
        if not candidate_indices:
            raise _no_room(config, engine, size)
        chosen = min(
            candidate_indices,
            key=lambda index: (num_engines_on[index], -nodes[index].free_gpus, -nodes[index].free_cpus),
        )
        num_engines_on[chosen] += 1
        engine_places.append((chosen, nodes[chosen].take(engine.resources)))
    slots |= {engine.name: slot for engine, slot in zip(engines, sorted(engine_places), strict=True)}
    places = ((actor, *slots[actor.name]) for actor in actors)
    return [replace(actor, node=node, gpus=gpus) for actor, node, gpus in places]


def _groups(ranks: Sequence[PlacedActor], tensor_parallel: int) -> Iterator[Sequence[PlacedActor]]:
    """Consecutive ranks of one tensor-parallel group each."""
    for begin in range(0, len(ranks), tensor_parallel):
        yield ranks[begin : begin + tensor_parallel]


class _Room:
    """What is still free on a node."""

    def __init__(self, size: ClusterSize) -> None:
        self.free_cpus = exact(size.num_cpus)
        self._gpus = [Fraction(1)] * size.num_gpus
        """The free share of each."""

    @property
    def free_gpus(self) -> Fraction:
        return sum(self._gpus, Fraction())

    def has_room(self, group: Iterable[PlacedActor]) -> bool:
        """True when all of a group fit."""
        cpus, gpus = self.free_cpus, self._gpus.copy()
        for actor in group:
            chosen = _free_gpus(gpus, actor.resources)
            cpus -= exact(actor.resources.num_cpus)
            if chosen is None or cpus < 0:
                return False
            _occupy(gpus, chosen, actor.resources)
        return True

    def take(self, resources: ActorResources) -> tuple[int, ...]:
        """Occupy what an actor reserves, for which there is room; returns its GPUs."""
        chosen = _free_gpus(self._gpus, resources)
        assert chosen is not None
        _occupy(self._gpus, chosen, resources)
        self.free_cpus -= exact(resources.num_cpus)
        return chosen


def _free_gpus(free: Sequence[Fraction], resources: ActorResources) -> tuple[int, ...] | None:
    """Return the first free GPUs: whole ones, or one with this share left; None when there are too few."""
    wanted = exact(resources.num_gpus)
    if not wanted:
        return ()
    share, number = min(wanted, Fraction(1)), math.ceil(wanted)
    candidates = [gpu for gpu, left in enumerate(free) if left >= share]
    return tuple(candidates[:number]) if len(candidates) >= number else None


def _occupy(free: list[Fraction], gpus: Iterable[int], resources: ActorResources) -> None:
    for gpu in gpus:
        free[gpu] -= min(exact(resources.num_gpus), Fraction(1))


def _no_room(config: RunConfig, actor: PlacedActor, size: ClusterSize) -> ConfigError:
    actors = planned_actors(config)
    num_cpus = sum(planned.resources.num_cpus for planned in actors)
    num_gpus = sum(planned.resources.num_gpus for planned in actors)
    offer = f"{size.num_cpus:g} CPUs and {size.num_gpus:g} GPUs"
    return ConfigError(
        f"The actors reserve {num_cpus:g} CPUs and {num_gpus:g} GPUs, and there is no room for {actor.name}, which "
        f"reserves {actor.resources.num_cpus:g} and {actor.resources.num_gpus:g}.",
        f"The backend offers {offer}."
        if size.num_nodes == 1
        else f"There are {size.num_nodes} nodes of {offer}; trainer and reward share the first one.",
        "Lower engine.num_engines or the resources of engine, trainer, reward or judge; or raise backend.num_cpus, so "
        "that actors share cores; or ask Slurm for more: cluster.num_nodes, cluster.cpus_per_node, "
        "cluster.gpus_per_node.",
    )
