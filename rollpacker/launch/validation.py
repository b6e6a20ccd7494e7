"""Judges the jobs of a sweep by the cluster that they are for, before the first one is submitted.

Everything that is wrong with any point is said together, and nothing is created. What Slurm alone can know (limits of
accounts and QOS, reservations, free nodes) is left to it. Where there is no scontrol, the cluster is not looked at.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from rollpacker.config.keys import nearest
from rollpacker.config.mistakes import raise_mistakes
from rollpacker.core.errors import ConfigError, UserError
from rollpacker.launch.batches import batch_script, batches
from rollpacker.launch.container import check_container
from rollpacker.launch.file_systems import file_system_of
from rollpacker.launch.points import points_of
from rollpacker.launch.script import OWN_OPTIONS, memory_mb
from rollpacker.launch.shape import job_shape, ray_size
from rollpacker.launch.site import read_site
from rollpacker.launch.slurm_commands import has_slurm
from rollpacker.launch.surroundings import surrounding_images
from rollpacker.runtime.run.preflight import RealRunFacts, ResolvedRun, RunFactsOf, validate_all
from rollpacker.runtime.run.preflight import validate as judge_run

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.launching import LauncherSettings
    from rollpacker.config.multirun import Sweep
    from rollpacker.config.schema import RunConfig
    from rollpacker.config.sections.cluster import ClusterSection
    from rollpacker.launch.points import Point
    from rollpacker.launch.shape import JobShape
    from rollpacker.launch.site import Node, Partition, Site
    from rollpacker.runtime.placing.actors import ClusterSize

_SECONDS_PER_MINUTE = 60
_MOST_LISTED = 20
"""Names in one message."""


def validate_sweep(sweep: Sweep, run_facts_of: RunFactsOf) -> tuple[ResolvedRun, ...]:
    """Judge every point of a sweep by what it would run on: this machine, or jobs when our launcher is to submit it.

    Raises:
        UserError: Everything that is wrong.
        WorldError: Slurm is here, but does not answer.
    """
    if sweep.launcher is None:
        return validate_all(sweep.configs, run_facts_of)
    return validate_launch(points_of(sweep), sweep.launcher, sweep.folder, run_facts_of)


def validate_launch(
    points: Sequence[Point], settings: LauncherSettings, folder: Path, run_facts_of: RunFactsOf
) -> tuple[ResolvedRun, ...]:
    """Judge every point as a run and as a job; raises all mistakes together, those that points share once.

    Raises:
        UserError: What is wrong.
        WorldError: Slurm is here, but does not answer.
    """
    is_for_slurm = settings.executor == "slurm"
    mistakes: dict[str, UserError] = {}
    resolved_runs: list[ResolvedRun] = []
    for point in points:
        try:
            resolved_runs.append(judge_run(point.config, _in_jobs(run_facts_of) if is_for_slurm else run_facts_of))
        except UserError as error:
            mistakes.setdefault(str(error), error)
    if is_for_slurm:
        for mistake in _job_mistakes(points):
            mistakes.setdefault(str(mistake), mistake)
    raise_mistakes(list(mistakes.values()))
    if is_for_slurm:
        for batch in batches(points):
            batch_script(batch, settings, folder)  # refuses what cannot be bound into a container
    return tuple(resolved_runs)


def site_mistakes(shape: JobShape, site: Site) -> Iterator[UserError]:
    """What the cluster cannot give to a job of this shape."""
    cluster = shape.cluster
    partition = site.default_partition if cluster.partition is None else site.partition(cluster.partition)
    if partition is None:
        yield _no_partition(cluster, site)
        return
    yield from _partition_mistakes(shape, partition)
    yield from _node_mistakes(shape, partition, site.nodes_of(partition))
    yield from _feature_mistakes(cluster, site)


class _JobFacts(RealRunFacts):
    """Of a real run on the nodes of its job, of which this machine need not be one."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__(config)
        self._job_config = config

    def cluster(self) -> ClusterSize:
        return ray_size(self._job_config)


def _in_jobs(run_facts_of: RunFactsOf) -> RunFactsOf:
    return lambda config: (
        _JobFacts(config) if config.backend.name == "ray" and config.cluster is not None else run_facts_of(config)
    )


def _job_mistakes(points: Sequence[Point]) -> Iterator[UserError]:
    if shutil.which("sbatch") is None:
        yield ConfigError(
            "There is no command `sbatch` here.",
            "hydra/launcher=slurm submits by it; in a container it has to be bound into it.",
            "Go to a login node, load the module that brings Slurm, or choose hydra.launcher.executor=local.",
        )
    image = next(iter(surrounding_images(os.environ).values()), None)
    yield from _folder_mistakes([point.config for point in points])
    site = read_site() if has_slurm() else None
    for point in points:
        config, cluster = point.config, point.config.cluster
        if cluster is None:
            yield ConfigError(
                "hydra/launcher=slurm without a cluster.",
                "A job asks for what the point's section `cluster` says.",
                "Choose an option of the group, such as cluster=slurm, and set what the job needs.",
            )
            continue
        if image is not None and cluster.container.image is None:
            yield ConfigError(
                f"This process runs in the image {image}, and cluster.container.image=null.",
                "The nodes would look for its Python outside of it.",
                f"Write hydra.launcher.container={image}",
            )
        yield from _option_mistakes(cluster)
        yield from _time_mistakes(cluster)
        yield from check_container(cluster.container, cluster.setup)
        if site is not None:
            try:
                yield from site_mistakes(job_shape(config), site)
            except ConfigError:
                continue  # the actors find no room, which the run's own judgement says


def _option_mistakes(cluster: ClusterSection) -> Iterator[UserError]:
    for name in cluster.sbatch:
        if name in OWN_OPTIONS:
            key = OWN_OPTIONS[name]
            yield ConfigError(
                f"cluster.sbatch names --{name}, which RollPacker sets itself.",
                "There go options of sbatch that have no key of their own.",
                f"Write {key}=..." if key else f"Leave out cluster.sbatch.{name}",
            )
        elif not re.fullmatch(r"[a-z][a-z0-9-]+", name):
            yield ConfigError(
                f"cluster.sbatch names `{name}`.",
                "Options of sbatch stand there by their long names, without dashes before them.",
                "Write cluster.sbatch={reservation: maintenance}",
            )


def _time_mistakes(cluster: ClusterSection) -> Iterator[UserError]:
    if cluster.time_limit_min and cluster.time_limit_min * _SECONDS_PER_MINUTE <= cluster.signal_lead_s:
        yield ConfigError(
            f"cluster.time_limit_min={cluster.time_limit_min} is no longer than cluster.signal_lead_s="
            f"{cluster.signal_lead_s}.",
            "The job is told to leave that long before its limit, so it would leave at its start.",
            "Raise cluster.time_limit_min, or lower cluster.signal_lead_s.",
        )


def _folder_mistakes(configs: Sequence[RunConfig]) -> Iterator[UserError]:
    """Say once of each file system that it is not shared."""
    seen: set[str] = set()
    for config in configs:
        if config.cluster is None or config.cluster.has_shared_files:
            continue
        file_system = file_system_of(config.run.dir)
        place = "an unknown file system" if file_system is None else str(file_system)
        if (file_system is None or not file_system.is_shared) and place not in seen:
            seen.add(place)
            yield ConfigError(
                f"run.dir={config.run.dir} lies on {place}, which other machines do not see as far as can be told.",
                "Every node of a job writes and reads there, and so does the next attempt on other nodes.",
                "Choose a run.dir on the cluster's shared file system. If all nodes do see this one, at the same path, "
                "set cluster.has_shared_files=true",
            )


def _no_partition(cluster: ClusterSection, site: Site) -> ConfigError:
    names = [partition.name for partition in site.partitions]
    listed = f"The partitions are {_listed(names)}."
    if cluster.partition is None:
        return ConfigError(
            "cluster.partition=null, and this Slurm has no default partition.", listed, "Write cluster.partition=..."
        )
    close = nearest(cluster.partition, names)
    return ConfigError(
        f"cluster.partition={cluster.partition} is not a partition of this Slurm.",
        listed,
        f"Write cluster.partition={close[0]}" if close else "Choose one of them.",
    )


def _partition_mistakes(shape: JobShape, partition: Partition) -> Iterator[UserError]:
    cluster, name = shape.cluster, partition.name
    if partition.state in {"DRAIN", "INACTIVE"}:
        yield ConfigError(
            f"Partition `{name}` is {partition.state}.", "It takes no new jobs.", "Choose another cluster.partition."
        )
    longest = partition.max_time_min
    if longest is not None and cluster.time_limit_min is not None and cluster.time_limit_min > longest:
        yield ConfigError(
            f"cluster.time_limit_min={cluster.time_limit_min} is more than partition `{name}` allows.",
            f"It allows {longest} minutes.",
            f"Set cluster.time_limit_min={longest} or lower (a run that needs longer is requeued and goes on), or "
            "choose another cluster.partition.",
        )
    if partition.max_nodes is not None and shape.num_nodes > partition.max_nodes:
        yield ConfigError(
            f"The job asks for {shape.num_nodes} nodes, more than partition `{name}` allows.",
            f"It allows {partition.max_nodes} per job.",
            "Choose another cluster.partition, or a run that needs fewer GPUs.",
        )
    for key, value, allowed in (
        ("account", cluster.account, partition.allowed_accounts),
        ("qos", cluster.qos, partition.allowed_qos),
    ):
        if value is not None and allowed is not None and value not in allowed:
            close = nearest(value, allowed)
            yield ConfigError(
                f"cluster.{key}={value} may not use partition `{name}`.",
                f"It is for {_listed(allowed)}.",
                f"Write cluster.{key}={close[0]}" if close else f"Choose another cluster.{key} or cluster.partition.",
            )


def _node_mistakes(shape: JobShape, partition: Partition, nodes: Sequence[Node]) -> Iterator[UserError]:
    """Each resource is held against the largest node first; then enough nodes must have all of them together."""
    cluster, is_possible = shape.cluster, True
    memory = memory_mb(cluster) or 0
    gpu_types = sorted({kind for node in nodes for kind in node.gpus_by_type if kind})
    if cluster.gpu_type is not None and cluster.gpu_type not in gpu_types:
        close = nearest(cluster.gpu_type, gpu_types)
        is_possible = False
        yield ConfigError(
            f"cluster.gpu_type={cluster.gpu_type} is on no node of partition `{partition.name}`.",
            f"Slurm knows {_listed(gpu_types)} there." if gpu_types else "Slurm knows no types of GPUs there.",
            f"Write cluster.gpu_type={close[0]}" if close else "Leave it out: null takes any GPU.",
        )
    for key, value, asked, unit, most in (
        ("gpus_per_node", cluster.gpus_per_node, cluster.gpus_per_node, "GPUs", _most(nodes, _gpus_of(cluster))),
        ("cpus_per_node", cluster.cpus_per_node, cluster.cpus_per_node, "CPUs", _most(nodes, lambda n: n.num_cpus)),
        ("memory_gb_per_node", cluster.memory_gb_per_node, memory, "MiB", _most(nodes, lambda n: n.memory_mb)),
    ):
        if asked > most:
            shown = f"{value:g}" if unit != "MiB" else f"{value:g} ({asked} MiB)"
            is_possible = False
            yield ConfigError(
                f"cluster.{key}={shown} is more than a node of partition `{partition.name}` has.",
                f"Its largest node has {most} {unit}.",
                f"Lower cluster.{key}, or choose another cluster.partition."
                if most or unit != "GPUs"
                else "Choose a cluster.partition whose nodes have GPUs.",
            )
    fitting = [
        node
        for node in nodes
        if _gpus_of(cluster)(node) >= cluster.gpus_per_node
        and node.num_cpus >= cluster.cpus_per_node
        and node.memory_mb >= memory
    ]
    if is_possible and len(fitting) < shape.num_nodes:
        asked_for = f"{cluster.cpus_per_node} CPUs and {cluster.gpus_per_node} GPUs"
        yield ConfigError(
            f"The job asks for {shape.num_nodes} nodes of at least {asked_for}.",
            f"Partition `{partition.name}` has {len(fitting)} of them.",
            "Lower cluster.num_nodes where it is set, or choose another cluster.partition or a smaller run.",
        )


def _feature_mistakes(cluster: ClusterSection, site: Site) -> Iterator[UserError]:
    known = sorted({feature for node in site.nodes for feature in node.features})
    for name in re.findall(r"[A-Za-z_][\w.:=-]*", cluster.constraint or ""):
        if name not in known:
            close = nearest(name, known)
            yield ConfigError(
                f"cluster.constraint={cluster.constraint} names `{name}`, a feature that no node has.",
                f"The features are {_listed(known)}." if known else "No node of this Slurm has features.",
                f"Write {close[0]} instead." if close else "Leave it out.",
            )


def _gpus_of(cluster: ClusterSection) -> Callable[[Node], int]:
    kind = cluster.gpu_type
    return lambda node: node.num_gpus if kind is None else node.gpus_by_type.get(kind, 0)


def _most(nodes: Sequence[Node], count: Callable[[Node], int]) -> int:
    return max((count(node) for node in nodes), default=0)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
