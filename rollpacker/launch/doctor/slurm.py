"""Slurm: whether its version, settings and partitions let a run start, be signalled, be requeued and be found again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.core.errors import ConfigError
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem_of
from rollpacker.launch.doctor.preemption import Preemption, Qos, notice_of, preemption_of
from rollpacker.launch.shape import JobShape
from rollpacker.launch.site import Partition, Site
from rollpacker.launch.site_mistakes import job_mistakes, partitions_of, site_mistakes, time_limit_min

OLDEST_VERSION = (22, 5)
"""The oldest version that the launcher was tested with; 24.11 is the newest."""

_SHORTEST_GRACE_S = 30
"""The checkpoint of a large model takes at least as long."""

_SHORTEST_KILL_WAIT_S = 10
"""Between SIGTERM and SIGKILL; processes need as long to end in order."""


def check_slurm(
    site: Site, shape: JobShape | None, qos: Mapping[str, Qos], job_qos: str | None = None
) -> Iterator[Finding]:
    """Check a cluster for any job, and for one of this shape.

    Args:
        site: The cluster.
        shape: None checks no job.
        qos: What accounting tells of each, where the cluster preempts by QOS.
        job_qos: That of the surrounding job, where the shape names none.
    """
    yield from check_site(site)
    if shape is None:
        return
    try:
        partitions = partitions_of(shape, site)
    except ConfigError as error:
        yield problem_of("partition", error)
        return
    yield check_partitions(site, partitions)
    yield from check_job(site, partitions, shape)
    cluster, likely = shape.cluster, likely_partitions(site, partitions, shape)
    if len(likely) < len(partitions):
        plugins = f"JobSubmitPlugins={site.settings['JobSubmitPlugins']}"
        yield fine(
            "preemption", f"as in the default partition; cluster.partition=null leaves the choice to Slurm's {plugins}"
        )
    losses = [(each.name, preemption_of(site, each, qos, cluster.qos or job_qos)) for each in likely]
    yield from (check_preemption(site, partition, loss, cluster) for partition, loss in losses)
    off = "off (cluster.requeue=false): start the run again to go on"
    requeued = f"a requeued job waits for at least {site.requeue_delay_s} s (cred_expire)"
    yield fine("requeue", requeued if cluster.requeue else off)


def check_site(site: Site) -> Iterator[Finding]:
    """Check what holds for every job: version, accounting, processes, arrays, and the time before a kill."""
    nodes = f"{len(site.nodes)} nodes" if site.nodes else "nodes that only operators see (PrivateData)"
    version = f"{site.version}, cluster {site.name}: {nodes}, {len(site.partitions)} partitions"
    is_old = tuple(int(part) for part in re.findall(r"\d+", site.version)[:2]) < OLDEST_VERSION
    tried = "RollPacker was tested with 22.05 and 24.11; the output of older versions may differ."
    yield probe("Slurm", version, (is_old, "warning", version, tried))

    forgets = f"is off: Slurm forgets how a job ended after {site.settings.get('MinJobAge', '300 sec')}"
    ask = "`rollpacker jobs` then only knows what a run wrote. Ask for slurmdbd, or look soon after the run ends."
    remembers = "sacct remembers how jobs ended"
    yield probe("accounting", remembers, (not site.has_accounting, "warning", forgets, ask))

    kind = site.settings.get("ProctrackType", "").removeprefix("proctrack/")
    misses = f"Slurm may miss processes that left their parents (proctrack/{kind})"
    detach = "RollPacker ends its own; what your rewards start should not detach. Ask for proctrack/cgroup."
    ends = "Slurm ends every process of a job (cgroup)"
    yield probe("processes", ends, (kind != "cgroup", "warning", misses, detach))

    largest = site.max_array_size
    points = f"of up to {largest} points (MaxArraySize)"
    one_by_one = "A sweep of several points needs them: run its points one by one."
    yield probe("arrays", points, (largest <= 1, "warning", "are not allowed (MaxArraySize)", one_by_one))

    seconds = int(site.settings.get("KillWait", "30 sec").split()[0])
    killed = f"jobs are killed {seconds} s after the last signal (KillWait)"
    lead = "Keep cluster.signal_lead_s longer than a step and its checkpoint, so that the job ends before."
    yield probe("time limit", killed, (seconds < _SHORTEST_KILL_WAIT_S, "warning", killed, lead))


def check_partitions(site: Site, partitions: Sequence[Partition]) -> Finding:
    """Check whether one of them accepts a job, and starts it."""
    text, starts_jobs = service_of(site, partitions)
    other = "Choose another cluster.partition, or wait."
    return probe(
        "partition",
        text,
        (not any(each.accepts_jobs for each in partitions), "problem", f"{text}: it accepts no jobs", other),
        (not starts_jobs, "problem", f"{text}: no job starts", other),
    )


def service_of(site: Site, partitions: Sequence[Partition]) -> tuple[str, bool]:
    """Tell what is in service, and whether jobs start there; of nodes that are not shown nothing."""
    texts, starts_jobs = [], False
    for partition in partitions:
        nodes = site.nodes_of(partition)
        num_up = sum(node.is_available for node in nodes)
        in_service = f", {num_up} of {len(nodes)} nodes in service" if site.nodes else ""
        texts.append(f"{partition.name} is {partition.state}{in_service}")
        starts_jobs |= partition.state == "UP" and (num_up > 0 or not site.nodes)
    return "; ".join(texts), starts_jobs


def likely_partitions(site: Site, partitions: Sequence[Partition], shape: JobShape) -> Sequence[Partition]:
    """Of the partitions of a job, only the default one where it names none: plugins of the cluster often keep it."""
    default = site.default_partition
    return partitions if shape.cluster.partition is not None or default is None else (default,)


def check_job(site: Site, partitions: Sequence[Partition], shape: JobShape, subject: str = "job") -> Iterator[Finding]:
    """Check what the job asks for against the partitions' nodes and limits, as a launch does."""
    nodes = "its nodes exist" if site.nodes else "whether its nodes exist is not known"
    mistakes = [*job_mistakes(shape, partitions, site), *(site_mistakes(shape.beside, site) if shape.beside else ())]
    limits = (time_limit_min(shape, each) for each in partitions)
    times = ("without a time limit" if limit is None else f"{limit} minutes for each attempt" for limit in limits)
    time = " or ".join(dict.fromkeys(times))
    yield from [problem_of(subject, mistake) for mistake in mistakes] or [fine(subject, f"{nodes}; {time}")]


def check_preemption(site: Site, partition: str, loss: Preemption | None, cluster: ClusterSection) -> Finding:
    """Check which signal precedes a preemption, and how long the job has then."""
    if loss is None:
        return fine("preemption", f"jobs of {partition} keep their nodes")
    signal, ends_mount = notice_of(site, cluster)
    text = loss.after(signal)
    return probe(
        "preemption",
        text,
        (
            loss.is_in_place,
            "warning",
            f"jobs of {loss.jobs} are stopped in place ({loss.mode}), and every wait of a run has a deadline",
            "Choose a partition or QOS that requeues or cancels, or longer backend.deadlines.",
        ),
        (
            loss.grace_s is not None and loss.grace_s < _SHORTEST_GRACE_S,
            "warning",
            f"{text}: too short for a checkpoint",
            "The run goes on from its last regular checkpoint: lower run.checkpoint_every_steps.",
        ),
        (
            ends_mount,
            "warning",
            f"{text}, which ends the mount of an image that is one file",
            "Unpack the image into a folder, or ask for SlurmctldParameters=preempt_send_user_signal.",
        ),
    )
