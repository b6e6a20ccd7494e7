"""Places actors by the maps of `placement`, which name the GPUs of engines, ranks and judges.

Engines and ranks that share GPUs use them in turn; a judge works beside the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Literal

from rollpacker.config.gpu_map import GpuMap
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import exact
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError
from rollpacker.runtime.placing.actors import (
    ClusterSize,
    PlacedActor,
    nodes_in_words,
    planned_actors,
)


def mapped(config: RunConfig, size: ClusterSize, engine_map: GpuMap, trainer_map: GpuMap) -> list[PlacedActor]:
    """Give engines, ranks and judges the GPUs of their maps in order; actors without GPUs are placed on node 0."""
    actors = planned_actors(config)
    engines = [actor for actor in actors if actor.role == "engine"]
    ranks = [actor for actor in actors if actor.role == "trainer"]
    engine_blocks = _blocks(config, size, "engine", engine_map)
    if len(engine_blocks) != len(engines):
        raise _wrong_number(
            f"placement.engine={config.placement.engine} holds {counted(len(engine_blocks), 'engine')} of "
            f"engine.tensor_parallel={config.engine.tensor_parallel} on {nodes_in_words(size)}, and engine.num_engines="
            f"{len(engines)}.",
            f"Set engine.num_engines={len(engine_blocks)}" if engine_blocks else "",
            "placement.engine",
        )
    trainer_blocks = _blocks(config, size, "trainer", trainer_map) if config.trains else []
    rank_blocks = [(node, (gpu,)) for node, gpus in trainer_blocks for gpu in gpus]
    if len(rank_blocks) != len(ranks):
        per_replica = config.trainer.num_ranks // (config.trainer.data_parallel or 1)
        can_fill = rank_blocks and len(rank_blocks) % per_replica == 0 and config.trainer.name != "torch"
        raise _wrong_number(
            f"placement.trainer={config.placement.trainer} holds {counted(len(rank_blocks), 'rank')} on "
            f"{nodes_in_words(size)}, and trainer={config.trainer.name} with its degrees has {len(ranks)}.",
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
    placed = [replace(actor, node=node, gpus=gpus) for actor, (node, gpus) in places]
    _check_cpus(config, size, placed)
    return placed


def _judge_blocks(
    config: RunConfig, size: ClusterSize, judges: Sequence[PlacedActor]
) -> list[tuple[int, tuple[int, ...]]]:
    """The node and the GPUs of each judge."""
    if config.placement.judge is None:
        return [(0, ())] * len(judges)
    blocks = _blocks(config, size, "judge", config.placement.judge_map)
    if len(blocks) != len(judges):
        raise _wrong_number(
            f"placement.judge={config.placement.judge} holds {counted(len(blocks), 'judge')} of "
            f"reward.judge.tensor_parallel={config.reward.judge.tensor_parallel} on {nodes_in_words(size)}, and there "
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
            f"The run has {nodes_in_words(size)}, counted from 0.",
            "Name others, or set cluster.num_nodes.",
        )
    for node in range(size.num_nodes):
        gpus = gpu_map.gpus_of(node, size.num_gpus)
        if (missing := max(gpus, default=-1)) >= size.num_gpus:
            raise ConfigError(
                f"{text} names GPU {missing} of node {node}.",
                f"A node has {counted(size.num_gpus, 'GPU')}, counted from 0."
                if size.num_gpus
                else "There is no GPU: this machine or CUDA_VISIBLE_DEVICES has none, or the job asks for none.",
                "Name others, or set cluster.gpus_per_node in a job, and backend.num_gpus outside of one.",
            )
        if len(gpus) % degree:
            raise ConfigError(
                f"{text} gives {counted(len(gpus), 'GPU')} of node {node}, which {key}.tensor_parallel={degree} does "
                "not divide.",
                "An engine or judge stays within one node, as do the ranks of a tensor-parallel group of the trainer.",
                f"Name a multiple of {degree} GPUs on each node, or change {key}.tensor_parallel.",
            )
        blocks += [(node, gpus[begin : begin + degree]) for begin in range(0, len(gpus), degree)]
    return blocks


def _wrong_number(problem: str, other_way: str, key: str) -> ConfigError:
    return ConfigError(
        problem,
        "Every GPU that a map names has an engine or a rank, and each of them has GPUs.",
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
                f"placement.engine={config.placement.engine} and placement.trainer={config.placement.trainer} "
                "place them there; the reward is on node 0.",
                "Raise cluster.cpus_per_node; or raise backend.num_cpus, so that actors share cores; or lower "
                "engine.resources.num_cpus or trainer.resources.num_cpus.",
            )
