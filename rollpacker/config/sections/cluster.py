"""The Slurm job of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from rollpacker.config.sections.base import Count, Flag, Number, Positive, Section, WorkerCount

Word = Annotated[str, Field(coerce_numbers_to_str=True)]
"""A text that may be written as a number: the value of a variable or of an option."""


def _variables(variables: dict[str, str]) -> dict[str, str]:
    """Refuse what bash cannot export: it would complain in the job's log, and go on without."""
    for name in variables:
        if not (name.isascii() and name.isidentifier()):
            raise ValueError(
                f"cluster.environment names no variable by {name!r}.\n"
                "A name has ASCII letters, digits and _, and begins with no digit.\nCorrect it."
            )
    return variables


def _variables_inside(variables: dict[str, str]) -> dict[str, str]:
    """Refuse what `env NAME=VALUE` would not take as the name of a variable."""
    for name in variables:
        if not name or name.startswith("-") or "=" in name:
            raise ValueError(
                f"cluster.container.environment names no variable by {name!r}.\n"
                "A name is not empty, has no = and begins with no -.\nCorrect it."
            )
    return variables


class ContainerSection(Section):
    """The image in which every rank of a Slurm job runs."""

    image: Path | None = None
    """A SIF file or an unpacked (sandbox) directory; null runs in the environment that submits."""
    runtime: Literal["apptainer", "singularity"] = "apptainer"
    """The command that runs the image on the nodes."""
    python: str = "python3"
    """The interpreter inside the image that has RollPacker."""
    options: tuple[str, ...] = ()
    """Further options of `apptainer exec`, such as --userns."""
    binds: tuple[str, ...] = ()
    """Further folders that the image sees, as SOURCE[:TARGET[:ro]]; the run's own folders are bound anyway."""
    environment: Annotated[dict[str, Word], AfterValidator(_variables_inside)] = Field(default_factory=dict)
    """Variables inside the image, on top of `cluster.environment`."""


class EnvironmentNodesSection(Section):
    """Nodes without GPUs that the job has beside its others: the second component of a heterogeneous job.

    Slurm starts, preempts and requeues both together, and preempts them only if it preempts the partitions of both in
    the same way. A run without environments does not ask for these nodes.
    """

    num_nodes: WorkerCount = 0
    """With 0 there are none, and `environment.nodes` says where environments run."""
    partition: str | None = None
    """Where these nodes are, such as a partition without GPUs; null is that of the others."""
    account: str | None = None
    """The account that is charged; null is that of the others."""
    qos: str | None = None
    """Quality of service; null is that of the others."""
    constraint: str | None = None
    """Features that these nodes must have, in Slurm's grammar; null asks for none."""
    cpus_per_node: Count = Field(8, ge=1)
    """Cores of each."""
    memory_gb_per_node: Number | None = Field(None, ge=0)
    """10^9 bytes; 0 asks for all of a node's memory, null leaves it to Slurm's default."""
    sbatch: dict[str, Word] = Field(default_factory=dict)
    """Further options of sbatch for these nodes, by their long names."""


class ClusterSection(Section):
    """The Slurm job of one run: what it asks for, and how it handles preemption and time limits."""

    name: str
    """What people call the cluster."""
    num_nodes: WorkerCount | None = Field(None, ge=1)
    """null asks for as many nodes as the GPUs of engines and trainer fill."""
    gpus_per_node: WorkerCount = 0
    """GPUs that the job asks for on each node."""
    gpu_type: str | None = None
    """As Slurm names it (GRES type); null takes any."""
    gpu_memory_gb: Positive | None = None
    """Of one GPU, 10^9 bytes: a model that cannot fit is refused before anything loads. null: it is not checked."""
    price_per_gpu_hour: Number | None = Field(None, ge=0)
    """What an hour of one GPU of the run's own job costs, in any currency; null: not known (`rollpacker report`)."""
    cpus_per_node: Count = Field(1, ge=1)
    """Cores that the job asks for on each node, which all actors there share."""
    memory_gb_per_node: Number | None = Field(None, ge=0)
    """10^9 bytes; 0 asks for all of a node's memory, null leaves it to Slurm's default."""
    time_limit_min: Count | None = Field(None, ge=1)
    """Of one attempt; null leaves it to SBATCH_TIMELIMIT, or the partition's default."""
    partition: str | None = None
    """Where the job queues; null leaves it to SBATCH_PARTITION, or Slurm's default."""
    account: str | None = None
    """The account that is charged; null leaves it to SBATCH_ACCOUNT, or Slurm's default."""
    qos: str | None = None
    """Quality of service; null leaves it to SBATCH_QOS, or Slurm's default."""
    constraint: str | None = None
    """Features that the nodes must have, in Slurm's grammar; null leaves it to SBATCH_CONSTRAINT."""
    exclusive: Flag = False
    """The job shares its nodes with no other job."""
    sbatch: dict[str, Word] = Field(default_factory=dict)
    """Further options of sbatch by their long names: {reservation: maintenance}. Where Slurm knows no --gpus-per-node,
    {gres: 'gpu:8'} stands in its place; the number is that of cluster.gpus_per_node."""
    setup: tuple[str, ...] = ()
    """Lines of bash that run on the first node before the ranks start, such as `module load apptainer`. The
    options -e, -u and -o pipefail of `set` hold for these lines alone."""
    environment: Annotated[dict[str, Word], AfterValidator(_variables)] = Field(default_factory=dict)
    """Variables of every rank, such as NCCL_SOCKET_IFNAME."""
    network_interface: str | None = None
    """For the traffic between Ray's nodes; null takes the address of the node's name."""
    scratch: tuple[str, ...] = ("$SLURM_TMPDIR", "$TMPDIR", "/tmp")  # noqa: S108  (a list of candidates, the first that fits)
    """Folders on the node itself; the first that is writable and short enough for sockets holds Ray's session."""
    has_shared_files: Flag = False
    """Every node sees the run's folder at the same path, although its file system does not look like a network's."""
    requeue: Flag = True
    """A job that is preempted, reaches its limit or loses a node that its run needs is requeued, and the run resumes
    from its checkpoint; see `max_attempts_without_progress`."""
    signal: Literal["URG", "USR2", "TERM"] = "URG"
    """What Slurm sends to every process of a job before the time limit and, where it is set up so, at preemption. USR2
    and TERM end Ray and images that are mounted without root (squashfuse) unless they are shielded; URG does not. Where
    preemption always sends TERM, use an unpacked image, which needs no mount; in a checkout of RollPacker:
    slurm/build_image.sh FOLDER."""
    signal_lead_s: Count = Field(120, ge=1, le=65535)
    """How long before the time limit; Slurm may be a minute early."""
    max_attempts_without_progress: Count = Field(2, ge=1)
    """The job is not requeued again after so many attempts in a row without a new checkpoint."""
    container: ContainerSection = ContainerSection()
    environment_nodes: EnvironmentNodesSection = EnvironmentNodesSection()
    """Nodes on which environments run and nothing else: cluster.environment_nodes.num_nodes=2
    cluster.environment_nodes.partition=cpu. When the last of them is lost, the run ends."""
