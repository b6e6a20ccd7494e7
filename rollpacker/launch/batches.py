"""Which points go into which job or array, and the script of each: points whose jobs ask for the same share one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollpacker.config.launching import LauncherSettings
from rollpacker.config.words import counted
from rollpacker.launch.container import container_command, paths_to_read, paths_to_write
from rollpacker.launch.elastic_script import elastic_script, end_of_array, porter
from rollpacker.launch.points import Point
from rollpacker.launch.sbatch_script import job_word, sbatch_text
from rollpacker.launch.shape import JobShape, job_shape, workers_shape

FOLDER = ".submitit"
"""Below the folder that the points share: scripts, pickled calls, logs of the ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Points whose jobs ask for the same: one job, or one array."""

    shape: JobShape
    points: tuple[Point, ...]

    @property
    def nodes(self) -> str:
        """How many each job has, as text."""
        text, beside = counted(self.shape.num_nodes, "node"), self.shape.beside
        return f"{text} and {beside.num_nodes} for environments" if beside else text


def batches(points: Sequence[Point]) -> list[Batch]:
    """Put points of equal shapes together, in the order of the points; alone those that Slurm takes into no array."""
    found: list[tuple[JobShape, list[Point]]] = []
    for point in points:
        shape = job_shape(point.config)
        can_share = shape.beside is None
        members = next((members for known, members in found if known == shape and can_share), None)
        if members is None:
            found.append((shape, members := []))
        members.append(point)
    return [Batch(shape=shape, points=tuple(members)) for shape, members in found]


def batch_folder(sweep_folder: Path) -> Path:
    """The folder of the scripts, calls and logs of a sweep."""
    return sweep_folder.resolve() / FOLDER


def batch_script(batch: Batch, settings: LauncherSettings, sweep_folder: Path) -> str:
    """Render what sbatch is given for a batch of a sweep whose points share `sweep_folder`.

    Raises:
        ConfigError: A path cannot be bound into the container.
    """
    return sbatch_text(
        batch.shape,
        name=f"rollpacker-{sweep_folder.resolve().name}",
        folder=batch_folder(sweep_folder),
        python=_python(batch, sweep_folder),
        of_environments=_python(batch, sweep_folder, has_gpus=False),
        num_jobs=len(batch.points),
        array_parallelism=settings.array_parallelism,
        **_for_workers(batch, sweep_folder),
    )


def workers_script(point: Point, job_id: str, sweep_folder: Path) -> str:
    """Render what sbatch is given for the rollout workers of a point, whose job has this number."""
    shape = job_shape(point.config)
    return elastic_script(
        point.config,
        job_id=job_id,
        name=workers_name(point),
        folder=batch_folder(sweep_folder),
        python=_python(Batch(shape=shape, points=(point,)), sweep_folder),
    )


def workers_name(point: Point) -> str:
    """What Slurm calls the jobs of these."""
    return f"workers-{point.config.run.dir.name}"


def _for_workers(batch: Batch, sweep_folder: Path) -> dict[str, list[str]]:
    """Lines of the run's own script, where a point has workers.

    Points without them may be in the same array: their porter only sleeps, and array_parallelism stays one limit.
    """
    jobs = [point.config.elastic.job for point in batch.points if workers_shape(point.config) is not None]
    intervals = [job.poll_interval_s for job in jobs if job is not None]
    if not intervals:
        return {}
    own = job_word(is_array=len(batch.points) > 1)
    return {"before": porter(batch_folder(sweep_folder), own, max(intervals)), "after": end_of_array()}


def _python(batch: Batch, sweep_folder: Path, *, has_gpus: bool = True) -> Sequence[str]:
    """The command that runs Python on a node, with what GPUs it has: of this environment, or of the image."""
    cluster = batch.shape.cluster
    if cluster.container.image is None:
        return [sys.executable]
    configs = [point.config for point in batch.points]
    written = dict.fromkeys(path for config in configs for path in paths_to_write(config.run.dir, sweep_folder))
    read = dict.fromkeys(path for config in configs for path in paths_to_read(config))
    return container_command(
        cluster.container,
        has_gpus=has_gpus and cluster.gpus_per_node > 0,
        write_paths=tuple(written),
        read_paths=tuple(read),
        scratch=cluster.scratch,
    )
