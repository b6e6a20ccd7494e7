"""Slurm for rollout workers: whether a partition takes their array, and what preemption and accounting mean for it."""

from __future__ import annotations

from collections.abc import Iterator

from rollpacker.config.keys import nearest
from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem
from rollpacker.launch.site import Partition, Site

_ELSEWHERE = "Its requests go on elsewhere from the tokens that it has reported."


def check_workers(site: Site, cluster: ClusterSection, elastic: ElasticSection) -> Iterator[Finding]:
    """Check a cluster for the rollout workers of a run; nothing where it submits none."""
    job = elastic.job
    if job is None or not elastic.is_on:
        return
    name = job.partition or cluster.partition
    partition = site.default_partition if name is None else site.partition(name)
    if partition is None:
        names = [each.name for each in site.partitions]
        close = nearest(name or "", names) or names
        remedy = f"Write elastic.job.partition={close[0]}." if close else "Ask for a partition."
        yield problem("workers", f"there is no partition {name}; there are {', '.join(names)}", remedy)
        return
    yield _check_array(site, partition, job, elastic.max_workers)
    yield _check_loss(site, partition, cluster, elastic)
    yield fine("workers: queue", _queue_again(site, partition))
    files = "their hours of GPUs are those of the run's own files: Slurm keeps no accounts here"
    ask = "Ask for slurmdbd if you are billed by Slurm's hours; `rollpacker report` says where each number is from."
    knows = "sacct has their hours, for `rollpacker report`"
    yield probe("workers: accounts", knows, (not site.has_accounting, "warning", files, ask))


def _check_array(site: Site, partition: Partition, job: ElasticJobSection, max_workers: int) -> Finding:
    """Check whether the partition takes the array, and starts its elements."""
    nodes = site.nodes_of(partition)
    num_up = sum(node.is_available for node in nodes)
    elements, largest = job.num_elements or 4 * max_workers, int(site.settings.get("MaxArraySize") or 0)
    text = f"{partition.name} is {partition.state}, {num_up} of {len(nodes)} nodes in service; {elements} elements"
    longest = partition.max_time_min
    return probe(
        "workers",
        text,
        (
            partition.state != "UP" or not num_up,
            "problem",
            f"{text}: no worker starts",
            "Choose another elastic.job.partition; the run itself goes on without workers.",
        ),
        (
            elements > largest,
            "problem",
            f"{elements} elements, and an array has at most {largest} (MaxArraySize)",
            f"Set elastic.job.num_elements={largest} or less." if largest else "Start workers by hand.",
        ),
        (
            longest is not None and job.time_limit_min > longest,
            "problem",
            f"elastic.job.time_limit_min={job.time_limit_min}, and {partition.name} gives {longest} at most",
            f"Set elastic.job.time_limit_min={longest} or less.",
        ),
    )


def _check_loss(site: Site, partition: Partition, cluster: ClusterSection, elastic: ElasticSection) -> Finding:
    """Check what a preemption does to a worker, and what it is told before."""
    mode, grace_s = partition.preempt_mode, partition.grace_time_s
    if not site.may_preempt(partition):
        return fine("workers: loss", f"{partition.name} does not preempt; they end with their time limit")
    # a worker's script asks for the signal of the run's own job
    signal = cluster.signal if site.signals_before_preempting else "TERM"
    text = f"{partition.name} preempts ({mode}), {grace_s} s after SIG{signal}"
    image = cluster.container.image
    return probe(
        "workers: loss",
        text,
        (
            mode not in {"REQUEUE", "CANCEL"},
            "warning",
            f"{partition.name} stops them in place ({mode}): each is lost after {elastic.silence_s:g} s of silence",
            "Choose a partition that requeues or cancels.",
        ),
        (
            grace_s <= elastic.drain_margin_s,
            "warning",
            f"{text}: lost at once, without the time to drain (elastic.drain_margin_s={elastic.drain_margin_s:g})",
            f"{_ELSEWHERE} A partition with a longer GraceTime loses none.",
        ),
        (
            signal == "TERM" and image is not None and not image.is_dir(),
            "warning",
            f"{text}, which ends the mount of an image that is one file: lost at once",
            f"{_ELSEWHERE} Unpack the image, or ask for SlurmctldParameters=preempt_send_user_signal.",
        ),
    )


def _queue_again(site: Site, partition: Partition) -> str:
    if site.may_preempt(partition) and partition.preempt_mode == "CANCEL":
        return "a preempted element is gone (CANCEL), and the next one of the array starts in its place"
    default = site.settings.get("JobRequeue", "1")
    return (
        f"an element queues again after {site.requeue_delay_s} s at least (cred_expire); its script asks for that, "
        f"whatever JobRequeue={default} says of others"
    )
