"""Slurm: whether its version, settings and partitions let a run begin, be warned, be requeued, and be found again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rollpacker.config.keys import nearest
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem
from rollpacker.launch.site import Partition, Site

OLDEST_VERSION = (22, 5)
"""What the launcher was run with; 24.11 is the newest."""

_SHORTEST_GRACE_S = 30
"""A checkpoint of a large model takes as long at least."""

_SHORTEST_KILL_WAIT_S = 10
"""Between SIGTERM and SIGKILL; in less, processes hardly end in order."""


def check_slurm(site: Site, cluster: ClusterSection | None) -> Iterator[Finding]:
    """Judge a cluster for any job, and for the one that is described."""
    yield from check_site(site)
    if cluster is None:
        return
    partition = site.default_partition if cluster.partition is None else site.partition(cluster.partition)
    if partition is None:
        yield no_partition(site, cluster)
        return
    yield check_partition(site, partition)
    yield check_nodes(site, partition, cluster)
    yield check_time(partition, cluster)
    yield check_preemption(site, partition, cluster)
    off = "off (cluster.requeue=false): start the run again to go on"
    requeued = f"a requeued job waits for at least {site.requeue_delay_s} s (cred_expire)"
    yield fine("requeue", requeued if cluster.requeue else off)


def check_site(site: Site) -> Iterator[Finding]:
    """Judge what holds for every job: version, accounting, processes, arrays, and the time before a kill."""
    version = f"{site.version}, cluster {site.name}: {len(site.nodes)} nodes, {len(site.partitions)} partitions"
    is_old = tuple(int(part) for part in re.findall(r"\d+", site.version)[:2]) < OLDEST_VERSION
    tried = "RollPacker was tried with 22.05 and 24.11; expect other words from older ones."
    yield probe("Slurm", version, (is_old, "warning", version, tried))

    forgets = f"is off: Slurm forgets how a job ended after {site.settings.get('MinJobAge', '300 sec')}"
    ask = "`rollpacker jobs` then only knows what a run wrote. Ask for slurmdbd, or look soon after a run's end."
    remembers = "sacct remembers how jobs ended"
    yield probe("accounting", remembers, (not site.has_accounting, "warning", forgets, ask))

    kind = site.settings.get("ProctrackType", "").removeprefix("proctrack/")
    misses = f"Slurm may miss processes that left their parents (proctrack/{kind})"
    detach = "RollPacker ends its own; what your rewards start should not detach. Ask for proctrack/cgroup."
    ends = "Slurm ends every process of a job (cgroup)"
    yield probe("processes", ends, (kind != "cgroup", "warning", misses, detach))

    largest = int(site.settings.get("MaxArraySize") or 0)
    points = f"of up to {largest - 1} points (MaxArraySize={largest})"
    one_by_one = "A sweep of several points needs them: run its points one by one."
    yield probe("arrays", points, (largest <= 1, "warning", "are not allowed (MaxArraySize)", one_by_one))

    seconds = int(site.settings.get("KillWait", "30 sec").split()[0])
    killed = f"jobs are killed {seconds} s after the last signal (KillWait)"
    lead = "Keep cluster.signal_lead_s longer than a step and its checkpoint, so that the last signal never comes."
    yield probe("time limit", killed, (seconds < _SHORTEST_KILL_WAIT_S, "warning", killed, lead))


def no_partition(site: Site, cluster: ClusterSection) -> Finding:
    """Say that there is no such partition, or no default one."""
    names = [partition.name for partition in site.partitions]
    if cluster.partition is None:
        return problem("partition", "no default partition", f"Write cluster.partition=...: {', '.join(names)}.")
    close = nearest(cluster.partition, names)
    return problem(
        "partition",
        f"{cluster.partition} is not one of {', '.join(names)}",
        f"Write cluster.partition={close[0]}" if close else "Choose one of them.",
    )


def check_partition(site: Site, partition: Partition) -> Finding:
    """Judge whether jobs get in, and begin."""
    nodes = site.nodes_of(partition)
    num_up = sum(node.is_available for node in nodes)
    text = f"{partition.name} is {partition.state}, {num_up} of {len(nodes)} nodes in service"
    other = "Choose another cluster.partition, or wait."
    return probe(
        "partition",
        text,
        (partition.state in {"DRAIN", "INACTIVE"}, "problem", f"{text}: it takes no jobs", other),
        (partition.state != "UP" or not num_up, "problem", f"{text}: no job begins", other),
    )


def check_nodes(site: Site, partition: Partition, cluster: ClusterSection) -> Finding:
    """Judge whether enough nodes are as large as the job asks for."""
    kind = cluster.gpu_type
    fitting = [
        node
        for node in site.nodes_of(partition)
        if (node.gpus_by_type.get(kind, 0) if kind else node.num_gpus) >= cluster.gpus_per_node
        and node.num_cpus >= cluster.cpus_per_node
        and node.memory_mb * (1 << 20) >= (cluster.memory_gb_per_node or 0) * 1e9
    ]
    asked = [f"{cluster.cpus_per_node} CPUs"]
    asked += [f"{cluster.gpus_per_node} {kind or ''}".rstrip() + " GPUs"] if cluster.gpus_per_node else []
    asked += [f"{cluster.memory_gb_per_node:g} GB"] if cluster.memory_gb_per_node else []
    text = f"{len(fitting)} of {partition.name} have {' and '.join(asked)}"
    num_asked = cluster.num_nodes or 1
    if len(fitting) < num_asked:
        found = sorted(
            {
                f"{' + '.join(f'{n} {name}'.strip() for name, n in node.gpus_by_type.items()) or 'no'} GPUs, "
                f"{node.num_cpus} CPUs, {node.memory_mb * (1 << 20) / 1e9:.0f} GB"
                for node in site.nodes_of(partition)
            }
        )
        return problem(
            "nodes",
            f"{text}, and the job asks for {num_asked}",
            f"Its nodes have: {'; '.join(found)}. Change cluster.gpus_per_node, gpu_type, cpus_per_node or "
            "memory_gb_per_node, or choose another partition.",
        )
    return fine("nodes", text)


def check_time(partition: Partition, cluster: ClusterSection) -> Finding:
    """Judge the job's time limit."""
    longest, asked = partition.max_time_min, cluster.time_limit_min
    limit = asked or partition.default_time_min or longest
    return probe(
        "job time",
        "without a limit" if limit is None else f"{limit} minutes for each attempt",
        (
            longest is not None and asked is not None and asked > longest,
            "problem",
            f"cluster.time_limit_min={asked}, and partition {partition.name} allows {longest}",
            f"Set cluster.time_limit_min={longest}: a run that needs longer is requeued and goes on.",
        ),
    )


def check_preemption(site: Site, partition: Partition, cluster: ClusterSection) -> Finding:
    """Judge what a job is told before its nodes are taken, and how long it has then."""
    mode, grace_s = partition.preempt_mode, partition.grace_time_s
    if not site.may_preempt(partition):
        return fine("preemption", f"jobs of {partition.name} keep their nodes")
    signal = cluster.signal if site.signals_before_preempting else "TERM"
    text = f"jobs of {partition.name} lose their nodes ({mode}) {grace_s} s after SIG{signal}"
    image = cluster.container.image
    return probe(
        "preemption",
        text,
        (
            mode not in {"REQUEUE", "CANCEL"},
            "warning",
            f"jobs of {partition.name} are stopped in place ({mode}), and every wait of a run has a deadline",
            "Choose a partition that requeues or cancels, or longer backend.deadlines.",
        ),
        (
            grace_s < _SHORTEST_GRACE_S,
            "warning",
            f"{text}: too short for a checkpoint",
            "The run goes on from its last regular checkpoint: lower run.checkpoint_every_steps.",
        ),
        (
            signal == "TERM" and image is not None and not image.is_dir(),
            "warning",
            f"{text}, which ends the mount of an image that is one file",
            "Unpack the image into a folder, or ask for SlurmctldParameters=preempt_send_user_signal.",
        ),
    )
