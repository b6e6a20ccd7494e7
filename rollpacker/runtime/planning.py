"""Who works where: the actors of a run, the node of each one and its GPUs there, derived before anything starts.

    placement=null     every actor has the GPUs that its `resources` ask for, and nobody shares any. Trainer and reward
                       work beside the driver, on node 0, further ranks of the trainer and judges where there is room;
                       engines spread over the nodes.
    placement given    the maps say which GPUs engines, ranks and judges have. On those of engines and ranks they take
                       turns; a judge works beside the others.

Either way an engine stays within one node, as do the ranks of one tensor-parallel group of the trainer, and every actor
knows its GPUs by number: the run tells Ray where each one works, not the other way round.

Imports neither ray nor torch: the run, `rollpacker check` and a job's dry run derive the same plan by the same code.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby
from typing import Literal

from rollpacker.config.gpu_map import GpuMap
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.config.sections.resources import ActorResources
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import EngineId
from rollpacker.runtime.allocation import Allocation
from rollpacker.runtime.fleets import check_degrees, degrees_of
from rollpacker.runtime.machine import usable_cpus, visible_gpus

_MEBIBYTE = 1 << 20

Role = Literal["engine", "trainer", "judge", "reward"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedActor:
    """One actor and what it reserves."""

    name: str
    role: Role
    resources: ActorResources


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedActor:
    """One actor and where it works."""

    name: str
    role: Role
    resources: ActorResources
    node: int
    """Index of its node; 0 is the one that the driver runs on."""
    gpus: tuple[int, ...]
    """Of its node, counted from 0, ascending. One that reserves a share of a GPU has this GPU with others."""
    degree: int = 1
    """Of tensor parallelism, of an engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSize:
    """The nodes of a run and what Ray is told that each one has."""

    num_nodes: int
    num_cpus: int
    num_gpus: int


def planned_actors(config: RunConfig) -> list[PlannedActor]:
    """Every actor of the run: engines, the trainer's ranks, judges, the reward."""
    engine, trainer, judge = config.engine.resources, config.trainer.resources, config.reward.judge
    judges = judge.resources
    if config.placement.maps is not None:
        engine = engine.model_copy(update={"num_gpus": config.engine.tensor_parallel})
        trainer = trainer.model_copy(update={"num_gpus": 1})
    if config.placement.judge is not None:
        judges = judges.model_copy(update={"num_gpus": judge.tensor_parallel})
    num_ranks = config.trainer.num_ranks
    ranks = ["trainer"] if num_ranks == 1 else [f"trainer-{rank}" for rank in range(num_ranks)]
    return [
        *(
            PlannedActor(name=f"engine-{index}", role="engine", resources=engine)
            for index in range(config.engine.num_engines)
        ),
        *(PlannedActor(name=name, role="trainer", resources=trainer) for name in ranks),
        *(
            PlannedActor(name=f"judge-{index}", role="judge", resources=judges)
            for index in range(judge.num_replicas if config.reward.has_judge else 0)
        ),
        *([PlannedActor(name="reward", role="reward", resources=config.reward.resources)] * config.reward.has_rules),
    ]


def cluster_size(config: RunConfig, allocation: Allocation | None = None) -> ClusterSize:
    """Size Ray by this machine, or by what Slurm allocated; raises `ConfigError` when the actors find no place there.

    On a machine of one's own, cores may be shared, since engines and trainer take turns; in an allocation they may be
    only where `backend.num_cpus` says so. GPUs are shared only where `placement` says so.
    """
    given = config.backend
    if allocation is None:
        reserved = math.ceil(sum(actor.resources.num_cpus for actor in planned_actors(config)))
        num_nodes, num_cpus, num_gpus = 1, max(usable_cpus(), reserved), visible_gpus()
    else:
        _check_store(config, allocation)
        num_nodes, num_cpus, num_gpus = allocation.num_nodes, allocation.num_cpus, len(allocation.gpus)
    size = ClusterSize(
        num_nodes=num_nodes,
        num_cpus=num_cpus if given.num_cpus is None else given.num_cpus,
        num_gpus=num_gpus if given.num_gpus is None else given.num_gpus,
    )
    placed_actors(config, size)
    return size


def _check_store(config: RunConfig, allocation: Allocation) -> None:
    store_bytes = config.backend.object_store_mb * _MEBIBYTE
    if allocation.memory_bytes is not None and store_bytes >= allocation.memory_bytes:
        raise ConfigError(
            f"backend.object_store_mb={config.backend.object_store_mb} fills the job's memory on each node, which is "
            f"{allocation.memory_bytes // _MEBIBYTE} MiB.",
            "Ray's shared memory counts as the job's, and the actors need some beside it.",
            "Raise cluster.memory_gb_per_node, or lower backend.object_store_mb.",
        )


def placed_actors(config: RunConfig, size: ClusterSize) -> list[PlacedActor]:
    """Give every actor its node and its GPUs there, in the order of `planned_actors`; then engines of other degrees.

    Raises:
        ConfigError: One finds no room, or the maps fit neither the nodes nor the actors.
    """
    check_degrees(config)
    maps = config.placement.maps
    placed = _spread(config, size) if maps is None else _mapped(config, size, *maps)
    engines = [actor for actor in placed if actor.role == "engine"]
    others = [actor for degree in degrees_of(config)[1:] for actor in _engines_in_place_of(config, engines, degree)]
    return placed + others


def turn_takers(
    config: RunConfig, placed: Sequence[PlacedActor], role: Literal["engine", "judge"] = "engine"
) -> tuple[str, ...]:
    """Engines that share GPUs with the trainer, so that one sleeps while the other works; or judges beside them.

    A trainer that shares none with engines never sleeps, and has no turns that judges could keep.
    """
    if config.placement.maps is None:
        return ()  # who reserves a share of a GPU has it all the time
    of_trainer = {(actor.node, gpu) for actor in placed if actor.role == "trainer" for gpu in actor.gpus}
    sharing = [actor for actor in placed if any((actor.node, gpu) in of_trainer for gpu in actor.gpus)]
    if not any(actor.role == "engine" for actor in sharing):
        return ()
    return tuple(actor.name for actor in sharing if actor.role == role)


def trainer_parts(config: RunConfig, placed: Sequence[PlacedActor], gpus_per_node: int) -> tuple[tuple[int, ...], ...]:
    """The run's GPUs of each part of the trainer that can work alone; none where it shares no GPU with engines."""
    if not turn_takers(config, placed):
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
    """Who shares a GPU with a judge by the maps: judges, and everyone with one of their GPUs."""
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
    """Shorten a list of actors: those whose numbers follow each other become one range."""

    def run_of(place: tuple[int, str]) -> tuple[str, int]:
        index, name = place
        stem, _, number = name.rpartition("-")
        return (stem, int(number) - index) if number.isdecimal() else (name, 0)

    words: list[str] = []
    for _, run in groupby(enumerate(names), key=run_of):
        first, *others = [name for _, name in run]
        words.append(f"{first} to {others[-1]}" if others else first)
    return words


def run_gpus(actor: PlacedActor, gpus_per_node: int) -> tuple[int, ...]:
    """Number an actor's GPUs as those of the run: node after node."""
    return tuple(actor.node * gpus_per_node + gpu for gpu in actor.gpus)


def _engines_in_place_of(config: RunConfig, engines: Sequence[PlacedActor], degree: int) -> Iterator[PlacedActor]:
    """Give engines of another degree the GPUs of those of the configured one, several of one node or a part of one.

    They reserve no cores: they work while the others sleep, or are not there.
    """
    configured = config.engine.tensor_parallel
    number = itertools.count()
    for _, on_node in groupby(engines, key=lambda engine: engine.node):
        here = list(on_node)
        num_together = max(degree // configured, 1)
        if len(here) % num_together:
            raise ConfigError(
                f"engine.degrees={list(config.engine.degrees)}: node {here[0].node} has {_number(len(here), 'engine')} "
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


# By resources ------------------------------------------------------------------------------------------------------


def _spread(config: RunConfig, size: ClusterSize) -> list[PlacedActor]:
    """Trainer and reward first, then judges where most is free, then one engine after the other.

    Each engine goes to the node with the fewest engines among those with room, then to the one with the most free GPUs,
    then CPUs; neighbours in number are neighbours in place.
    """
    actors = planned_actors(config)
    engines = [actor for actor in actors if actor.role == "engine"]
    ranks = [actor for actor in actors if actor.role == "trainer"]
    judges = [actor for actor in actors if actor.role == "judge"]
    nodes = [_Room(size) for _ in range(size.num_nodes)]
    seats: dict[str, tuple[int, tuple[int, ...]]] = {}
    first_group, *other_groups = _groups(ranks, config.trainer.tensor_parallel)
    for group, candidates in (
        (first_group, nodes[:1]),
        *(([actor], nodes[:1]) for actor in actors if actor.role == "reward"),
        *((group, nodes) for group in other_groups),
    ):
        index = next((index for index, node in enumerate(candidates) if node.has_room(group)), None)
        if index is None:
            raise _no_room(config, group[0], size)
        seats |= {actor.name: (index, nodes[index].take(actor.resources)) for actor in group}
    for judge in judges:
        with_room = [index for index, node in enumerate(nodes) if node.has_room([judge])]
        if not with_room:
            raise _no_room(config, judge, size)
        index = max(with_room, key=lambda index: (nodes[index].free_gpus, nodes[index].free_cpus))
        seats[judge.name] = (index, nodes[index].take(judge.resources))
    engine_seats: list[tuple[int, tuple[int, ...]]] = []
    for engine in engines:
        candidate_indices = [index for index, node in enumerate(nodes) if node.has_room([engine])]
        if not candidate_indices:
            raise _no_room(config, engine, size)
        used = [node for node, _ in engine_seats]
        chosen = min(
            candidate_indices,
            key=lambda index: (used.count(index), -nodes[index].free_gpus, -nodes[index].free_cpus),
        )
        engine_seats.append((chosen, nodes[chosen].take(engine.resources)))
    seats |= {engine.name: seat for engine, seat in zip(engines, sorted(engine_seats), strict=True)}
    return [_placed(config, actor, *seats[actor.name]) for actor in actors]


def _groups(ranks: Sequence[PlannedActor], tensor_parallel: int) -> Iterator[Sequence[PlannedActor]]:
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

    def has_room(self, group: Iterable[PlannedActor]) -> bool:
        """Whether all of a group find a place."""
        cpus, gpus = self.free_cpus, self._gpus.copy()
        for actor in group:
            chosen = _free_gpus(gpus, actor.resources)
            cpus -= exact(actor.resources.num_cpus)
            if chosen is None or cpus < 0:
                return False
            _occupy(gpus, chosen, actor.resources)
        return True

    def take(self, resources: ActorResources) -> tuple[int, ...]:
        """Occupy what an actor reserves, for which there is room; gives its GPUs."""
        chosen = _free_gpus(self._gpus, resources)
        assert chosen is not None
        _occupy(self._gpus, chosen, resources)
        self.free_cpus -= exact(resources.num_cpus)
        return chosen


def _free_gpus(free: Sequence[Fraction], resources: ActorResources) -> tuple[int, ...] | None:
    """The first GPUs that can be had: whole ones, or one that has this share left; None when there are too few."""
    wanted = exact(resources.num_gpus)
    if not wanted:
        return ()
    share, number = min(wanted, Fraction(1)), math.ceil(wanted)
    candidates = [gpu for gpu, left in enumerate(free) if left >= share]
    return tuple(candidates[:number]) if len(candidates) >= number else None


def _occupy(free: list[Fraction], gpus: Iterable[int], resources: ActorResources) -> None:
    for gpu in gpus:
        free[gpu] -= min(exact(resources.num_gpus), Fraction(1))


def _placed(config: RunConfig, actor: PlannedActor, node: int, gpus: tuple[int, ...]) -> PlacedActor:
    degree = config.engine.tensor_parallel if actor.role == "engine" else 1
    return PlacedActor(name=actor.name, role=actor.role, resources=actor.resources, node=node, gpus=gpus, degree=degree)


def _no_room(config: RunConfig, actor: PlannedActor, size: ClusterSize) -> ConfigError:
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


# By maps -----------------------------------------------------------------------------------------------------------


def _mapped(config: RunConfig, size: ClusterSize, engine_map: GpuMap, trainer_map: GpuMap) -> list[PlacedActor]:
    """Give engines, ranks and judges the GPUs of their maps in order; who has none works on node 0."""
    actors = planned_actors(config)
    engines = [actor for actor in actors if actor.role == "engine"]
    ranks = [actor for actor in actors if actor.role == "trainer"]
    engine_blocks = _blocks(config, size, "engine", engine_map)
    if len(engine_blocks) != len(engines):
        raise _wrong_number(
            f"placement.engine={config.placement.engine} holds {_number(len(engine_blocks), 'engine')} of "
            f"engine.tensor_parallel={config.engine.tensor_parallel} on {_nodes(size)}, and engine.num_engines="
            f"{len(engines)}.",
            f"Set engine.num_engines={len(engine_blocks)}" if engine_blocks else "",
            "placement.engine",
        )
    rank_blocks = [(node, (gpu,)) for node, gpus in _blocks(config, size, "trainer", trainer_map) for gpu in gpus]
    if len(rank_blocks) != len(ranks):
        per_replica = config.trainer.num_ranks // (config.trainer.data_parallel or 1)
        can_fill = rank_blocks and len(rank_blocks) % per_replica == 0 and config.trainer.name != "torch"
        raise _wrong_number(
            f"placement.trainer={config.placement.trainer} holds {_number(len(rank_blocks), 'rank')} on {_nodes(size)},"
            f" and trainer={config.trainer.name} with its degrees has {len(ranks)}.",
            f"Set trainer.data_parallel={len(rank_blocks) // per_replica}" if can_fill else "",
            "placement.trainer",
        )
    judges = [actor for actor in actors if actor.role == "judge"]
    judge_blocks = _judge_blocks(config, size, judges)
    places = [
        *zip(engines, engine_blocks, strict=True),
        *zip(ranks, rank_blocks, strict=True),
        *zip(judges, judge_blocks, strict=True),
        *((actor, (0, ())) for actor in actors if actor.role == "reward"),
    ]
    placed = [_placed(config, actor, node, gpus) for actor, (node, gpus) in places]
    _check_cpus(config, size, placed)
    return placed


def _judge_blocks(
    config: RunConfig, size: ClusterSize, judges: Sequence[PlannedActor]
) -> list[tuple[int, tuple[int, ...]]]:
    """The node and the GPUs of each judge."""
    if config.placement.judge is None:
        return [(0, ())] * len(judges)
    blocks = _blocks(config, size, "judge", config.placement.judge_map)
    if len(blocks) != len(judges):
        raise _wrong_number(
            f"placement.judge={config.placement.judge} holds {_number(len(blocks), 'judge')} of "
            f"reward.judge.tensor_parallel={config.reward.judge.tensor_parallel} on {_nodes(size)}, and there "
            f"{'is' if len(judges) == 1 else 'are'} {len(judges)}.",
            f"Set reward.judge.num_replicas={len(blocks)}" if blocks and judges else "",
            "placement.judge",
        )
    return blocks


def _blocks(
    config: RunConfig, size: ClusterSize, role: Literal["engine", "trainer", "judge"], gpu_map: GpuMap
) -> list[tuple[int, tuple[int, ...]]]:
    """The node and the GPUs of each engine or judge, or of each tensor-parallel group of the trainer."""
    text = f"placement.{role}={getattr(config.placement, role)}"
    key = "reward.judge" if role == "judge" else role
    degrees = {
        "engine": config.engine.tensor_parallel,
        "trainer": config.trainer.tensor_parallel,
        "judge": config.reward.judge.tensor_parallel,
    }
    degree, blocks = degrees[role], []
    if (unknown := max(gpu_map.nodes, default=-1)) >= size.num_nodes:
        raise ConfigError(
            f"{text} names node {unknown}.",
            f"The run has {_nodes(size)}, counted from 0.",
            "Name others, or set cluster.num_nodes.",
        )
    for node in range(size.num_nodes):
        gpus = gpu_map.gpus_of(node, size.num_gpus)
        if (missing := max(gpus, default=-1)) >= size.num_gpus:
            raise ConfigError(
                f"{text} names GPU {missing} of node {node}.",
                f"A node has {_number(size.num_gpus, 'GPU')}, counted from 0."
                if size.num_gpus
                else "There is no GPU: CUDA_VISIBLE_DEVICES names none, or the job asks for none.",
                "Name others, or set cluster.gpus_per_node in a job, and backend.num_gpus outside of one.",
            )
        if len(gpus) % degree:
            raise ConfigError(
                f"{text} gives {_number(len(gpus), 'GPU')} of node {node}, which {key}.tensor_parallel={degree} does "
                "not divide.",
                "An engine or judge stays within one node, as do the ranks of a tensor-parallel group of the trainer.",
                f"Name a multiple of {degree} GPUs on each node, or change {key}.tensor_parallel.",
            )
        blocks += [(node, gpus[begin : begin + degree]) for begin in range(0, len(gpus), degree)]
    return blocks


def _wrong_number(problem: str, other_way: str, key: str) -> ConfigError:
    return ConfigError(
        problem,
        "Every GPU that a map names has its engine or its rank, and everyone has GPUs.",
        f"{other_way}, or change {key}." if other_way else f"Change {key}, or the numbers.",
    )


def _check_cpus(config: RunConfig, size: ClusterSize, placed: Sequence[PlacedActor]) -> None:
    for node in range(size.num_nodes):
        here = [actor for actor in placed if actor.node == node]
        reserved = sum((exact(actor.resources.num_cpus) for actor in here), Fraction())
        if reserved > size.num_cpus:
            raise ConfigError(
                f"The {len(here)} actors on node {node} reserve {float(reserved):g} CPUs, and the node has "
                f"{size.num_cpus}.",
                f"placement.engine={config.placement.engine} and placement.trainer={config.placement.trainer} say "
                "who works there; the reward works on node 0.",
                "Raise cluster.cpus_per_node; or raise backend.num_cpus, so that actors share cores; or lower "
                "engine.resources.num_cpus or trainer.resources.num_cpus.",
            )


def _number(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _nodes(size: ClusterSize) -> str:
    return f"{_number(size.num_nodes, 'node')} of {_number(size.num_gpus, 'GPU')}"
