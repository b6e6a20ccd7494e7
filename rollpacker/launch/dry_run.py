"""What a launch would do, as text: which points are skipped, each script, and the actors of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rollpacker.config.launching import LauncherSettings
from rollpacker.core.errors import WorldError
from rollpacker.launch.batches import Batch, batch_script, batches, workers_script
from rollpacker.launch.points import Point
from rollpacker.launch.queued_points import points_in_queue
from rollpacker.launch.shape import JobShape, ray_size, workers_shape
from rollpacker.runtime.placing.planning import placed_actors
from rollpacker.runtime.placing.topology import as_ranges

_JOB = "JOB"
"""Stands for a job's number, which Slurm has not given yet."""


def dry_run(points: Sequence[Point], settings: LauncherSettings, folder: Path) -> str:
    """Describe the launch of validated points, with names of the Hub as they are given; submits and creates nothing.

    Raises:
        ConfigError: The job of a point in the queue would train something else, or nothing.
    """
    to_do = [point for point in points if not point.has_finished]
    blocks = [f"{point.title} has finished: it would be skipped" for point in points if point.has_finished]
    if not settings.is_for_slurm:
        where = (
            "one after the other in this process" if settings.executor == "debug" else "in processes of this machine"
        )
        return "\n".join([*blocks, *(f"{point.title} would run {where}" for point in to_do)])
    queued: Mapping[int, str] = {}
    try:
        queued, _ = points_in_queue(to_do)
    except WorldError as unknown:
        blocks.append(f"{unknown.problem} {unknown.allowed}")
    blocks += [
        f"{point.title} is {queued[point.number]}: it would not be submitted again"
        for point in to_do
        if point.number in queued
    ]
    for batch in batches([point for point in to_do if point.number not in queued]):
        blocks.append(f"{_headline(batch)}\n\n{batch_script(batch, settings, folder)}")
        blocks += [topology(batch.shape, point) for point in batch.points]
        blocks += [
            f"# The array of rollout workers of {point.title}\n\n{workers_script(point, _JOB, folder)}"
            for point in batch.points
            if workers_shape(point.config)
        ]
    return "\n".join(blocks)


def topology(shape: JobShape, point: Point) -> str:
    """Say which actors work on which node."""
    config = point.config
    if config.backend.name == "sim":
        works = {0: ["driver, which models all actors"]}
    else:
        placed = placed_actors(config, ray_size(config))
        works = {0: ["driver"]}
        for actor in sorted(placed, key=lambda actor: actor.role == "engine"):
            works.setdefault(actor.node, []).append(actor.name)
    num_nodes = shape.num_nodes
    if shape.beside is not None:
        works |= {num_nodes + node: ["environments"] for node in range(shape.beside.num_nodes)}
        num_nodes += shape.beside.num_nodes
    lines = [f"  node {node}: {_work(works, node)}" for node in range(num_nodes)]
    return "\n".join([f"# {point.title} in {config.run.dir}", *(f"# {line}" for line in lines)])


def _headline(batch: Batch) -> str:
    if len(batch.points) == 1:
        return f"# One job of {batch.nodes} for {batch.points[0].title}"
    return f"# One array of {len(batch.points)} jobs of {batch.nodes} each"


def _work(works: Mapping[int, Sequence[str]], node: int) -> str:
    """Name a node's actors; those that follow each other as a range."""
    return ", ".join(as_ranges(works.get(node, ()))) or "nothing"
