"""Slurm for rollout workers: whether a partition takes their array, and what preemption and accounting mean for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.elastic import ElasticSection
from rollpacker.core.errors import ConfigError
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem_of
from rollpacker.launch.doctor.preemption import Preemption, Qos, notice_of, preemption_of
from rollpacker.launch.doctor.slurm import check_job, likely_partitions, service_of
from rollpacker.launch.shape import JobShape, num_elements
from rollpacker.launch.site import Partition, Site
from rollpacker.launch.site_mistakes import partitions_of

_ELSEWHERE = "Its requests go on elsewhere from the tokens that it has reported."


def check_workers(site: Site, shape: JobShape, elastic: ElasticSection, qos: Mapping[str, Qos]) -> Iterator[Finding]:
    """Check a cluster for the rollout workers of a run that submits some.

    Args:
        site: The cluster.
        shape: Of the job of each.
        elastic: Of the run.
        qos: What accounting tells of each, where the cluster preempts by QOS.
    """
    assert elastic.job is not None
    try:
        partitions = partitions_of(shape, site)
    except ConfigError as error:
        yield problem_of("workers", error)
        return
    yield _check_array(site, partitions, num_elements(elastic.job, elastic.max_workers))
    yield from check_job(site, partitions, shape, "workers: job")
    likely = likely_partitions(site, partitions, shape)
    losses = [(partition.name, preemption_of(site, partition, qos, shape.cluster.qos)) for partition in likely]
    yield from (_check_loss(site, partition, loss, shape.cluster, elastic) for partition, loss in losses)
    yield from (fine("workers: queue", text) for text in dict.fromkeys(_queue_again(site, loss) for _, loss in losses))
    files = "their hours of GPUs are those of the run's own files: Slurm keeps no accounts here"
    ask = "Ask for slurmdbd if you are billed by Slurm's hours; `rollpacker report` says where each number is from."
    knows = "sacct has their hours, for `rollpacker report`"
    yield probe("workers: accounts", knows, (not site.has_accounting, "warning", files, ask))


def _check_array(site: Site, partitions: Sequence[Partition], elements: int) -> Finding:
    """Check whether one of the partitions starts the elements of the array, and the cluster takes as many."""
    largest = site.max_array_size
    service, starts_jobs = service_of(site, partitions)
    text = f"{service}; {elements} elements"
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
    )


def _check_loss(
    site: Site, partition: str, loss: Preemption | None, cluster: ClusterSection, elastic: ElasticSection
) -> Finding:
    """Check what a preemption does to a worker, and what it is told before."""
    if loss is None:
        return fine("workers: loss", f"jobs of {partition} keep their nodes until their time limit")
    # a worker's script asks for the signal of the run's own job
    signal, ends_mount = notice_of(site, cluster)
    text = loss.after(signal)
    return probe(
        "workers: loss",
        text,
        (
            loss.is_in_place,
            "warning",
            f"jobs of {loss.jobs} are stopped in place ({loss.mode}); each is lost after {elastic.silence_s:g} s",
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
