"""The Slurm jobs of rollout workers."""

from __future__ import annotations

from pydantic import Field

from rollpacker.config.sections.base import Count, Number, Section
from rollpacker.config.sections.cluster import Word


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
