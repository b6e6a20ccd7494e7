"""The Slurm jobs of rollout workers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from rollpacker.config.sections.base import Count, Number, Section
from rollpacker.config.sections.cluster import Word

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

LEAVES_BEFORE_LIMIT_S = 30.0
"""A worker leaves so long before its job's time limit: its script still has to queue its element again, which it cannot
after Slurm's SIGTERM at the limit, and the clocks of nodes differ."""


class ElasticJobSection(Section):
    """One element of a job array for each worker; what is null is as `cluster` has it."""

    partition: str | None = None
    """Where workers queue, such as a preemptible partition."""
    qos: str | None = None
    """Quality of service."""
    account: str | None = None
    """The account that is charged."""
    constraint: str | None = None
    """Features that the nodes must have, in Slurm's grammar."""
    gpu_type: str | None = None
    """As Slurm names it (GRES type)."""
    sbatch: dict[str, Word] = Field(default_factory=dict)
    """Further options of sbatch by their long names: {licenses: elastic}."""
    time_limit_min: Count = Field(240, ge=1)
    """Of one life of a worker; the next element begins another one."""
    least_time_min: Count | None = Field(None, ge=1)
    """Slurm may shorten the limit down to this, to start a worker in a gap (--time-min); null never does."""
    cpus_per_worker: Count = Field(8, ge=1)
    """Cores of a worker's node."""
    memory_gb_per_worker: Number | None = Field(None, ge=0)
    """10^9 bytes, with Ray's store for weights (backend.object_store_mb); null leaves it to Slurm's default."""
    num_elements: Count | None = Field(None, ge=1)
    """Length of the array: lives that workers may have, without those that Slurm requeues; null: 4 x max_workers."""
    patience_min: Count = Field(15, ge=2)
    """A worker whose run's job waits in the queue gives its node back after so long, and queues again when the run goes
    on."""
    poll_interval_s: Count = Field(30, ge=15)
    """How often the run's job asks Slurm about workers, and tells it how many may run."""


def check_lives_of_workers(config: RunConfig) -> None:
    """Refuse lives in which a worker could never serve; raises `ValueError`."""
    job, elastic, cluster = config.elastic.job, config.elastic, config.cluster
    if job is None or cluster is None or not elastic.is_on:
        return
    key = "time_limit_min" if job.least_time_min is None else "least_time_min"
    shortest_min = getattr(job, key)
    if shortest_min > job.time_limit_min:
        raise ValueError(
            f"elastic.job.least_time_min={shortest_min} with elastic.job.time_limit_min={job.time_limit_min}.\n"
            "The least time is what Slurm may shorten the limit to.\n"
            f"Set elastic.job.least_time_min={job.time_limit_min} or less, or null."
        )
    least = max(("least_stay_s", "drain_lead_s"), key=lambda name: getattr(elastic, name))
    least_s = getattr(elastic, least)
    stay_s, signal_s = LEAVES_BEFORE_LIMIT_S + least_s, cluster.signal_lead_s
    needed_s = max(stay_s, signal_s)
    if 60 * shortest_min <= needed_s:
        why = (
            f"It leaves {LEAVES_BEFORE_LIMIT_S:g} s before the end, and is dismissed as it arrives if it could stay "
            f"less than elastic.{least}={least_s:g}."
            if stay_s >= signal_s
            else f"It joins no run after Slurm's signal, cluster.signal_lead_s={signal_s} before the end."
        )
        raise ValueError(
            f"elastic.job.{key}={shortest_min}: Slurm may give a worker no more than {60 * shortest_min} s.\n"
            f"{why}\n"
            f"Set elastic.job.{key}={int(needed_s // 60) + 1} or more."
        )
