"""The nodes of a Slurm job on which environments run and nothing else."""

from __future__ import annotations

from pydantic import Field

from rollpacker.config.sections.base import Count, Number, Section, WorkerCount
from rollpacker.config.sections.cluster import Word


class EnvironmentJobSection(Section):
    """Nodes without GPUs that a run's job has beside those of `cluster`: the second component of a heterogeneous job.

    Slurm starts, preempts and requeues both together. Partitions of two kinds of preemption keep such a job from being
    preempted at all.
    """

    num_nodes: WorkerCount = 0
    """With 0 there are none, and `environment.nodes` says where environments run."""
    partition: str | None = None
    """Where these nodes are, such as a partition without GPUs; null is as `cluster` has it."""
    account: str | None = None
    """The account that is charged; null is as `cluster` has it."""
    qos: str | None = None
    """Quality of service; null is as `cluster` has it."""
    constraint: str | None = None
    """Features that these nodes must have, in Slurm's grammar; null asks for none."""
    cpus_per_node: Count = Field(8, ge=1)
    """Cores of each."""
    memory_gb_per_node: Number | None = Field(None, ge=0)
    """10^9 bytes; 0 asks for all of a node's memory, null leaves it to Slurm's default."""
    sbatch: dict[str, Word] = Field(default_factory=dict)
    """Further options of sbatch for these nodes, by their long names."""
