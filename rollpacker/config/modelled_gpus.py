"""The GPUs of a modelled run: how many nodes it has, and which GPUs are the engines' and the trainer's.

Invariant: engines and trainer take turns on the same GPUs, or each has GPUs of its own. Then the run has
`hardware.num_nodes` nodes, or as few as hold its engines and every node that `placement` names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from pydantic import ValidationError

from rollpacker.config.sections.placement import PlacementSection

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.gpu_map import GpuMap
    from rollpacker.config.schema import RunConfig

_MOST_NODES = 100_000
"""Up to which engines look for room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelledGpus:
    """The GPUs of both roles, numbered as the run's: node after node."""

    per_node: int
    num_nodes: int
    of_engines: Sequence[int]
    of_trainer: Sequence[int]
    """Those of the engines where they take turns."""
    has_pools: bool
    """Engines and trainer have GPUs of their own."""

    @property
    def number(self) -> int:
        """Of the GPUs that engines or trainer work on."""
        return len(self.of_engines) + (len(self.of_trainer) if self.has_pools else 0)

    def by_node(self, gpus: Sequence[int]) -> Counter[int]:
        """How many of some GPUs each node has, of nodes with any."""
        return Counter(gpu // self.per_node for gpu in gpus)


def modelled_gpus(config: RunConfig) -> ModelledGpus:
    """Give engines and trainer their GPUs; raises `ValueError`, with a line for each part, where they do not fit."""
    assert config.hardware is not None
    engine, maps, per_node = config.engine, config.placement.maps, config.hardware.gpus_per_node
    wanted, num_nodes = engine.num_engines * engine.tensor_parallel, config.hardware.num_nodes
    if maps is None or maps[0] == maps[1]:
        shared = range(wanted if num_nodes is None else num_nodes * per_node)
        _check_engines(config, len(shared), f"hardware.num_nodes={num_nodes}")
        _check_replicas(config, wanted, "")
        num_nodes = -(-wanted // per_node)
        return ModelledGpus(
            per_node=per_node, num_nodes=num_nodes, of_engines=shared, of_trainer=shared, has_pools=False
        )
    num_nodes = num_nodes or _nodes_for(wanted, maps, per_node)
    engines, ranks = (
        _pool(config, role, [each.gpus_of(node, per_node) for node in range(num_nodes)])
        for role, each in zip(("engine", "trainer"), maps, strict=True)
    )
    placement = config.placement
    if set(engines) & set(ranks):
        raise ValueError(
            f"placement.engine={placement.engine} and placement.trainer={placement.trainer} with backend.name=sim.\n"
            "In a modelled run engines and trainer take turns on all GPUs, or have GPUs of their own.\n"
            "Choose placement=colocated, or placement.engine=rest, or choose backend=ray."
        )
    _check_engines(config, len(engines), f"placement.engine={placement.engine}")
    _check_replicas(config, len(ranks), f"placement.trainer={placement.trainer}")
    return ModelledGpus(per_node=per_node, num_nodes=num_nodes, of_engines=engines, of_trainer=ranks, has_pools=True)


def with_engines_that_fill(tree: Any) -> Any:
    """Give a modelled run of so many nodes as many engines as fill the GPUs that are theirs, where it names none."""
    sections = [tree.get(name) if isinstance(tree, Mapping) else None for name in ("engine", "hardware", "placement")]
    engine, hardware, placement = (each if isinstance(each, Mapping) else {} for each in sections)
    num_nodes, per_node = hardware.get("num_nodes"), hardware.get("gpus_per_node", 8)
    degree = engine.get("tensor_parallel", 1)
    is_asked = "num_engines" in engine and engine["num_engines"] is None
    if not is_asked or not (_is_count(num_nodes) and _is_count(per_node) and _is_count(degree)):
        return tree  # the schema says what is wrong
    try:
        maps = PlacementSection.model_validate(placement).maps
    except ValidationError:
        return tree
    found = num_nodes * per_node
    if maps is not None and maps[0] != maps[1]:
        found = sum(len(maps[0].gpus_of(node, per_node)) for node in range(num_nodes))
    return {**tree, "engine": {**engine, "num_engines": found // degree}}


def _is_count(value: object) -> TypeGuard[int]:
    return type(value) is int and value > 0


def _nodes_for(wanted: int, maps: tuple[GpuMap, GpuMap], per_node: int) -> int:
    """The fewest nodes on which the engines' map names so many GPUs, none fewer than the maps name."""
    least = 1 + max(max(each.named_nodes, default=0) for each in maps)
    found = sum(len(maps[0].gpus_of(node, per_node)) for node in range(least))
    each_more = len(maps[0].gpus_of(least, per_node))
    if found >= wanted or not each_more:
        return least
    return min(least + -(-(wanted - found) // each_more), _MOST_NODES)


def _pool(config: RunConfig, role: str, by_node: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The GPUs that a role's map names, as the run's."""
    assert config.hardware is not None
    per_node, degree = config.hardware.gpus_per_node, getattr(config, role).tensor_parallel
    text = f"placement.{role}={getattr(config.placement, role)}"
    for node, gpus in enumerate(by_node):
        if gpus and gpus[-1] >= per_node:
            raise ValueError(
                f"{text} names GPU {gpus[-1]} of node {node}.\n"
                f"A node has hardware.gpus_per_node={per_node}, counted from 0.\nName others."
            )
        if len(gpus) % degree:
            raise ValueError(
                f"{text} names {len(gpus)} GPUs of node {node}, which {role}.tensor_parallel={degree} does not "
                "divide.\nAn engine stays within one node, as do the ranks of a tensor-parallel group.\n"
                f"Name a multiple of {degree} GPUs on each node, or change {role}.tensor_parallel."
            )
    return tuple(node * per_node + gpu for node, gpus in enumerate(by_node) for gpu in gpus)


def _check_engines(config: RunConfig, num_gpus: int, named: str) -> None:
    engine = config.engine
    if num_gpus != engine.num_engines * engine.tensor_parallel:
        raise ValueError(
            f"{named} gives engines {num_gpus} GPUs, and engine.num_engines={engine.num_engines} of "
            f"engine.tensor_parallel={engine.tensor_parallel} take {engine.num_engines * engine.tensor_parallel}.\n"
            "Engines fill the GPUs that are theirs.\n"
            f"Set engine.num_engines={num_gpus // engine.tensor_parallel}, or change the GPUs."
        )


def _check_replicas(config: RunConfig, num_gpus: int, named: str) -> None:
    """Refuse GPUs that do not hold whole replicas, and nodes that do not hold whole tensor-parallel groups.

    `named` is the trainer's own map, if it has one: each node holds whole groups of it, which `_pool` has checked.
    """
    assert config.hardware is not None
    engine, trainer, per_node = config.engine, config.trainer, config.hardware.gpus_per_node
    num_sharing = trainer.tensor_parallel * trainer.pipeline_parallel * trainer.context_parallel
    if num_gpus and num_gpus % num_sharing == 0:
        if not named and per_node % trainer.tensor_parallel:
            raise ValueError(
                f"trainer.tensor_parallel={trainer.tensor_parallel} with hardware.gpus_per_node={per_node}.\n"
                "The GPUs of a tensor-parallel group lie in one node, and such groups fill nodes.\n"
                "Choose a degree that divides the GPUs of a node."
            )
        return
    text = f"engine.num_engines={engine.num_engines} of engine.tensor_parallel={engine.tensor_parallel} are"
    raise ValueError(
        f"{f'{named} names' if named else text} {num_gpus} GPUs, on which a trainer of {num_sharing} GPUs per replica "
        "does not fit.\n"
        + (
            "The trainer has whole replicas on GPUs of its own.\n"
            "Change placement.trainer, hardware.num_nodes or the trainer's parallel degrees."
            if named
            else "The trainer takes turns with the engines on the same GPUs, in whole replicas.\n"
            "Change engine.num_engines or the trainer's parallel degrees."
        )
    )
