"""Slurm for rollout workers: whether a partition takes their array, and what preemption and accounting mean for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.config.sections.elastic_job import ElasticJobSection
from rollpacker.core.errors import ConfigError
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem_of
from rollpacker.launch.doctor.preemption import Preemption, Qos, notice_of, preemption_of
from rollpacker.launch.doctor.slurm import likely_partitions, service_of
from rollpacker.launch.shape import JobShape, num_elements
from rollpacker.launch.site import Partition, Site
from rollpacker.launch.site_mistakes import partitions_of

_ELSEWHERE = "Its requests go on elsewhere from the tokens that it has reported."


def check_workers(site: Site, shape: JobShape, elastic: ElasticSection, qos: Mapping[str, Qos]) -> Iterator[Finding]:
    """Check a cluster for the rollout workers of a run; nothing where it submits none.

    Args:
        site: The cluster.
        shape: Of the run's own job.
        elastic: Of the run.
        qos: What accounting tells of each, where the cluster preempts by QOS.
    """
    job, cluster = elastic.job, shape.cluster
    if job is None or not elastic.is_on:
        return
    asked = cluster.model_copy(update={"partition": job.partition or cluster.partition})
    keys = {"partition": "elastic.job.partition"} if job.partition else shape.keys
    workers = JobShape(num_nodes=1, cluster=asked, keys=keys)
    try:
        partitions = partitions_of(workers, site)
    except ConfigError as error:
        yield problem_of("workers", error)
        return
    name = job.qos or cluster.qos
    yield _check_array(site, partitions, job, elastic.max_workers, name)
    likely = likely_partitions(site, partitions, workers)
    losses = [(partition.name, preemption_of(site, partition, qos, name)) for partition in likely]
    yield from (_check_loss(site, partition, loss, cluster, elastic) for partition, loss in losses)
    yield from (fine("workers: queue", text) for text in dict.fromkeys(_queue_again(site, loss) for _, loss in losses))
    files = "their hours of GPUs are those of the run's own files: Slurm keeps no accounts here"
    ask = "Ask for slurmdbd if you are billed by Slurm's hours; `rollpacker report` says where each number is from."
    knows = "sacct has their hours, for `rollpacker report`"
    yield probe("workers: accounts", knows, (not site.has_accounting, "warning", files, ask))


def _check_array(
    site: Site, partitions: Sequence[Partition], job: ElasticJobSection, max_workers: int, qos: str | None
) -> Finding:
    """Check whether one of the partitions takes the array, and starts its elements."""
    elements, largest = num_elements(job, max_workers), site.max_array_size
    service, starts_jobs = service_of(site, partitions)
    text = f"{service}; {elements} elements"
    names = ", ".join(partition.name for partition in partitions)
    limits = [partition.max_time_min for partition in partitions if partition.max_time_min is not None]
    longest = max(limits) if len(limits) == len(partitions) else None
    return probe(
        "workers",
        text,
        (
            not starts_jobs,
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
            qos is None and longest is not None and job.time_limit_min > longest,  # a QOS may lift the limit
            "problem",
            f"elastic.job.time_limit_min={job.time_limit_min}, and it is {longest} at most in {names}",
            f"Set elastic.job.time_limit_min={longest} or less.",
        ),
    )


def _check_loss(
    site: Site, partition: str, loss: Preemption | None, cluster: ClusterSection, elastic: ElasticSection
) -> Finding:
    """Check what a preemption does to a worker, and what it is told before."""
    if loss is None:
        return fine("workers: loss", f"{partition} does not preempt; they end with their time limit")
    # a worker's script asks for the signal of the run's own job
    signal, ends_mount = notice_of(site, cluster)
    text = f"{loss.jobs} preempts ({loss.mode}), {loss.time} after SIG{signal}"
    return probe(
        "workers: loss",
        text,
        (
            loss.is_in_place,
            "warning",
            f"{loss.jobs} stops them in place ({loss.mode}): each is lost after {elastic.silence_s:g} s of silence",
            "Choose a partition or QOS that requeues or cancels.",
        ),
        (
            loss.grace_s is not None and loss.grace_s <= elastic.drain_margin_s,
            "warning",
            f"{text}: lost at once, without the time to drain (elastic.drain_margin_s={elastic.drain_margin_s:g})",
            f"{_ELSEWHERE} A partition or QOS with a longer GraceTime loses none.",
        ),
        (
            ends_mount,
            "warning",
            f"{text}, which ends the mount of an image that is one file: lost at once",
            f"{_ELSEWHERE} Unpack the image, or ask for SlurmctldParameters=preempt_send_user_signal.",
        ),
    )


def _queue_again(site: Site, loss: Preemption | None) -> str:
    if loss is not None and loss.mode == "CANCEL":
        return "a preempted element is gone (CANCEL), and the next one of the array starts in its place"
    default = site.settings.get("JobRequeue", "1")
    return (
        f"an element queues again after {site.requeue_delay_s} s at least (cred_expire); its script asks for that, "
        f"whatever JobRequeue={default} says of others"
    )
