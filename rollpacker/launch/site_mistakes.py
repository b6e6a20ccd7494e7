"""What a cluster cannot give to a job, by its partitions and nodes. Pure: `read_site` asks Slurm.

Left to Slurm are limits of accounts and QOS, the accounts of a partition (newer versions include subaccounts), its
limits for jobs with a QOS (which may lift them), reservations, free nodes; and all nodes where it shows none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rollpacker.config.keys import nearest
from rollpacker.config.words import counted
from rollpacker.core.errors import ConfigError
from rollpacker.launch.sbatch_script import memory_mb
from rollpacker.launch.shape import JobShape
from rollpacker.launch.site import Node, Partition, Site

_SECONDS_PER_MINUTE = 60
_MOST_LISTED = 20
"""Names in one message."""


def site_mistakes(shape: JobShape, site: Site) -> Iterator[ConfigError]:
    """What the cluster cannot give to a job of this shape."""
    if shape.beside is not None:
        yield from site_mistakes(shape.beside, site)
    try:
        partitions = partitions_of(shape, site)
    except ConfigError as mistake:
        yield mistake
        return
    if not any(partition.accepts_jobs for partition in partitions):
        for partition in partitions:
            yield ConfigError(
                f"Partition `{partition.name}` is {partition.state}.",
                "It accepts no new jobs.",
                f"Choose another {shape.section}.partition.",
            )
    yield from job_mistakes(shape, partitions, site)


def partitions_of(shape: JobShape, site: Site) -> tuple[Partition, ...]:
    """The partitions of a job, which starts in the first of them that has its nodes free.

    All of them where it names none and the cluster's own program (job_submit) may choose one.

    Raises:
        ConfigError: Slurm does not have one of them.
    """
    given, key = shape.cluster.partition, shape.key("partition")
    names = [partition.name for partition in site.partitions]
    listed = f"The partitions are {_listed(names)}."
    if given is None:
        if site.chooses_partition:
            return site.partitions
        if site.default_partition is None:
            raise ConfigError(f"{key}=null, and this Slurm has no default partition.", listed, f"Write {key}=...")
        return (site.default_partition,)
    found = {name: site.partition(name) for name in given.split(",")}
    unknown = [name for name, partition in found.items() if partition is None]
    if unknown:
        close = {name: name if name not in unknown else next(iter(nearest(name, names)), "") for name in found}
        raise ConfigError(
            f"{key}={given} is not a partition of this Slurm."
            if len(found) == 1
            else f"{key}={given} names {_listed(unknown)}, which this Slurm does not have.",
            listed,
            f"Write {key}={','.join(close.values())}" if all(close.values()) else "Choose one of them.",
        )
    return tuple(partition for partition in found.values() if partition is not None)


def time_limit_min(shape: JobShape, partition: Partition) -> int | None:
    """The limit of a job of this shape in a partition, which has one for a job that names none; None: no limit."""
    if shape.cluster.time_limit_min is not None or "time_limit_min" in shape.keys:  # SBATCH_TIMELIMIT=UNLIMITED
        return shape.cluster.time_limit_min
    return partition.default_time_min or partition.max_time_min


def job_mistakes(shape: JobShape, partitions: Sequence[Partition], site: Site) -> Iterator[ConfigError]:
    """What no partition of a job allows, or has the nodes for; one of several that takes the job is enough."""
    accepting = [partition for partition in partitions if partition.accepts_jobs] or partitions
    mistakes = [
        [
            *_partition_mistakes(shape, partition),
            *(_node_mistakes(shape, partition, site.nodes_of(partition)) if site.nodes else ()),
        ]
        for partition in accepting
    ]
    if all(mistakes):
        for of_partition in mistakes:
            yield from of_partition
    if site.nodes:
        yield from _feature_mistakes(shape, site)


def _partition_mistakes(shape: JobShape, partition: Partition) -> Iterator[ConfigError]:
    cluster, section, name = shape.cluster, shape.section, partition.name
    longest, limit = partition.max_time_min, time_limit_min(shape, partition)
    if cluster.qos is not None:
        yield from _qos_mistakes(shape, partition, cluster.qos)
        return  # it may lift the partition's limits
    if longest is not None and cluster.time_limit_min is not None and cluster.time_limit_min > longest:
        time_key = shape.key("time_limit_min")
        yield ConfigError(
            f"{time_key}={cluster.time_limit_min} is more than partition `{name}` allows.",
            f"It allows {longest} minutes.",
            f"Set {time_key}={longest} or lower (a job that needs longer is requeued and goes on), or "
            f"choose another {section}.partition.",
        )
    if cluster.time_limit_min is None and limit is not None and limit * _SECONDS_PER_MINUTE <= cluster.signal_lead_s:
        yield ConfigError(
            f"Partition `{name}` limits a job that names no limit to {counted(limit, 'minute')}, no longer than "
            f"cluster.signal_lead_s={cluster.signal_lead_s}.",
            "The job is signalled that long before its limit, so it would be signalled at its start.",
            f"Set {shape.key('time_limit_min')}, or lower cluster.signal_lead_s.",
        )
    if partition.max_nodes is not None and shape.num_nodes > partition.max_nodes:
        yield ConfigError(
            f"The job asks for {shape.num_nodes} nodes, more than partition `{name}` allows.",
            f"It allows {partition.max_nodes} per job.",
            f"Choose another {section}.partition, or a run that needs fewer GPUs.",
        )


def _qos_mistakes(shape: JobShape, partition: Partition, qos: str) -> Iterator[ConfigError]:
    allowed = partition.allowed_qos
    if allowed is None or qos.lower() in map(str.lower, allowed):
        return
    close = nearest(qos, allowed)
    yield ConfigError(
        f"{shape.key('qos')}={qos} may not use partition `{partition.name}`.",
        f"It is for {_listed(allowed)}.",
        f"Write {shape.section}.qos={close[0]}"
        if close
        else f"Choose another {shape.section}.qos or {shape.section}.partition.",
    )


def _node_mistakes(shape: JobShape, partition: Partition, nodes: Sequence[Node]) -> Iterator[ConfigError]:
    """Compare each resource with the largest node; then enough nodes must have all of them together."""
    cluster, section, is_possible = shape.cluster, shape.section, True
    memory = memory_mb(cluster) or 0
    gpu_types = sorted({kind for node in nodes for kind in node.gpus_by_type if kind})
    num_gpus = _num_gpus(cluster.gpu_type)
    if cluster.gpu_type is not None and cluster.gpu_type not in gpu_types:
        num_gpus = _num_gpus(None)
        close = nearest(cluster.gpu_type, gpu_types)
        is_possible = False
        type_key = shape.key("gpu_type")
        yield ConfigError(
            f"{type_key}={cluster.gpu_type} is on no node of partition `{partition.name}`.",
            f"Slurm knows {_listed(gpu_types)} there." if gpu_types else "Slurm knows no types of GPUs there.",
            f"Write {section}.gpu_type={close[0]}"
            if close
            else f"Leave {type_key} out, or choose another {section}.gpu_type or {section}.partition.",
        )
    for key, value, asked, unit, most in (
        ("gpus_per_node", cluster.gpus_per_node, cluster.gpus_per_node, "GPUs", _most(nodes, num_gpus)),
        ("cpus_per_node", cluster.cpus_per_node, cluster.cpus_per_node, "CPUs", _most(nodes, lambda n: n.num_cpus)),
        ("memory_gb_per_node", cluster.memory_gb_per_node, memory, "MiB", _most(nodes, lambda n: n.memory_mb)),
    ):
        if asked > most:
            shown = f"{value:g}" if unit != "MiB" else f"{value:g} ({asked} MiB)"
            is_possible = False
            yield ConfigError(
                f"{shape.key(key)}={shown} is more than a node of partition `{partition.name}` has.",
                f"Its largest node has {most} {unit}.",
                f"Lower {shape.key(key)}, or choose another {section}.partition."
                if most or unit != "GPUs"
                else f"Set {section}.partition to one whose nodes have GPUs.",
            )
    fitting = [
        node
        for node in nodes
        if num_gpus(node) >= cluster.gpus_per_node
        and node.num_cpus >= cluster.cpus_per_node
        and node.memory_mb >= memory
    ]
    if is_possible and len(fitting) < shape.num_nodes:
        asked_for = f"{cluster.cpus_per_node} CPUs and {cluster.gpus_per_node} GPUs"
        yield ConfigError(
            f"The job asks for {counted(shape.num_nodes, 'node')} of at least {asked_for}.",
            f"Partition `{partition.name}` has {len(fitting)} of them.",
            f"Lower {section}.num_nodes where it is set, or choose another {section}.partition or a smaller run."
            if shape.num_nodes > 1
            else f"Choose another {section}.partition, or ask for less.",
        )


def _feature_mistakes(shape: JobShape, site: Site) -> Iterator[ConfigError]:
    constraint = shape.cluster.constraint
    known = sorted({feature for node in site.nodes for feature in node.features})
    for name in re.findall(r"(?<![\w.:=*-])\w[\w.:=-]*", constraint or ""):  # not the number of rack*4
        if name not in known:
            close = nearest(name, known)
            yield ConfigError(
                f"{shape.key('constraint')}={constraint} names `{name}`, a feature that no node has.",
                f"The features are {_listed(known)}." if known else "No node of this Slurm has features.",
                f"Write {close[0]} instead." if close else "Leave it out.",
            )


def _num_gpus(kind: str | None) -> Callable[[Node], int]:
    return lambda node: node.num_gpus if kind is None else node.gpus_by_type.get(kind, 0)


def _most(nodes: Sequence[Node], count: Callable[[Node], int]) -> int:
    return max((count(node) for node in nodes), default=0)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_LISTED
    return ", ".join(names[:_MOST_LISTED]) + (f" and {more} more" if more > 0 else "")
