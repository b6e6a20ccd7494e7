"""This cluster's Slurm: its settings, partitions and nodes, read from Slurm's own commands.

Nothing is guessed: what Slurm does not say is None. Parsers are pure; only `read_site` runs commands. For Slurm 22.05
to 24.11.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rollpacker.launch.slurm_commands import ask_slurm, failure_of, run_slurm

DEFAULT_CREDENTIAL_LIFE_S = 120
"""Slurm's default of AuthInfo's cred_expire, which is also how long a requeued job waits at least."""

_DEFAULT_ARRAY_SIZE = 1001
"""Slurm's default of MaxArraySize."""

_UNAVAILABLE = frozenset({"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE"})
"""Node states, or flags of states, in which no job starts there until an administrator acts."""

_NOT_FOR_US = "Access/permission denied"
"""What Slurm complains of where only operators see nodes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A queue, and what it allows."""

    name: str
    is_default: bool
    state: str
    """UP, DOWN (takes jobs and starts none), DRAIN (takes none) or INACTIVE."""
    max_time_min: int | None
    """None: no limit."""
    default_time_min: int | None
    """Of a job that names no limit; None: `max_time_min`."""
    max_nodes: int | None
    """Of one job; None: no limit."""
    grace_time_s: int
    """Between the first signal of a preemption and the kill."""
    preempt_mode: str
    """What happens to its jobs when others need their nodes: OFF, REQUEUE, CANCEL, SUSPEND, GANG."""
    priority_tier: int
    """Jobs of a higher one may take the nodes of its jobs, where the cluster preempts by partition."""
    allowed_qos: tuple[str, ...] | None
    """None: all."""

    @property
    def accepts_jobs(self) -> bool:
        """Whether jobs may queue here, whether or not they start."""
        return self.state not in {"DRAIN", "INACTIVE"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine as Slurm gives it to jobs."""

    name: str
    num_cpus: int
    """Without those that Slurm keeps for the system."""
    memory_mb: int
    """Mebibytes, without those that Slurm keeps for the system."""
    gpus_by_type: Mapping[str, int]
    """The type is empty where Slurm knows none."""
    state: str
    """Such as IDLE or MIXED+DRAIN."""
    features: tuple[str, ...]
    """What `--constraint` can name."""
    partitions: tuple[str, ...]

    @property
    def num_gpus(self) -> int:
        return sum(self.gpus_by_type.values())

    @property
    def is_available(self) -> bool:
        """Whether jobs start here, now or when it is free."""
        return _UNAVAILABLE.isdisjoint(re.split(r"[^A-Z_]+", self.state))


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """One Slurm cluster."""

    version: str
    """Such as 22.05.8."""
    settings: Mapping[str, str]
    """As `scontrol show config` prints them."""
    partitions: tuple[Partition, ...]
    nodes: tuple[Node, ...]
    """Empty where Slurm shows them to operators alone (PrivateData=nodes)."""

    @property
    def name(self) -> str:
        return self.settings.get("ClusterName", "")

    @property
    def has_accounting(self) -> bool:
        """Whether sacct remembers jobs that squeue has forgotten."""
        return self.settings.get("AccountingStorageType", "").endswith("slurmdbd")

    @property
    def requeue_delay_s(self) -> int:
        """How long a requeued job waits at least before it begins again."""
        found = re.search(r"cred_expire=(\d+)", self.settings.get("AuthInfo", ""))
        return int(found[1]) if found else DEFAULT_CREDENTIAL_LIFE_S

    @property
    def signals_before_preempting(self) -> bool:
        """Whether a preempted job gets the signal that it asked for (sbatch --signal), and not SIGTERM."""
        ours = self.settings.get("SlurmctldParameters", ""), self.settings.get("PreemptParameters", "")
        return any("send_user_signal" in value for value in ours)

    @property
    def max_array_size(self) -> int:
        """How many elements an array may have; 0: there are no arrays."""
        return int(self.settings.get("MaxArraySize") or _DEFAULT_ARRAY_SIZE)

    @property
    def chooses_partition(self) -> bool:
        """Whether a job that names no partition may go to another than the default one."""
        return bool(self.settings.get("JobSubmitPlugins"))

    @property
    def default_partition(self) -> Partition | None:
        return next((partition for partition in self.partitions if partition.is_default), None)

    def partition(self, name: str) -> Partition | None:
        return next((partition for partition in self.partitions if partition.name == name), None)

    def may_preempt(self, partition: Partition) -> bool:
        """Whether others' jobs may take the nodes of this partition's jobs. True where it is not known, as with QOS."""
        kind = self.settings.get("PreemptType", "").removeprefix("preempt/")
        if partition.preempt_mode == "OFF" or kind in {"", "none"}:
            return False
        if kind != "partition_prio":
            return True
        return any(
            other.priority_tier > partition.priority_tier
            and (not self.nodes or any(other.name in node.partitions for node in self.nodes_of(partition)))
            for other in self.partitions
        )

    def nodes_of(self, partition: Partition) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if partition.name in node.partitions)


def read_site() -> Site:
    """Ask this cluster's Slurm what it is.

    Raises:
        WorldError: no Slurm is here, or its controller does not answer.
    """
    settings = parse_settings(ask_slurm("scontrol", "show", "config"))
    partitions = parse_partitions(ask_slurm("scontrol", "--all", "show", "partition", "--oneliner"))
    nodes = parse_nodes(_ask_for_nodes())
    return Site(version=settings.get("SLURM_VERSION", ""), settings=settings, partitions=partitions, nodes=nodes)


def _ask_for_nodes() -> str:
    command = ("scontrol", "--all", "show", "node", "--oneliner")
    outcome = run_slurm(*command)
    if not outcome.is_success and _NOT_FOR_US not in outcome.complaint:
        raise failure_of(command, outcome)
    return outcome.output


def parse_settings(text: str) -> Mapping[str, str]:
    """Parse `scontrol show config`; what is not set is empty."""
    pairs = (line.partition("=") for line in text.splitlines())
    return {name.strip(): _given(value.strip()) for name, equals, value in pairs if equals}


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Parse `scontrol show partition --oneliner`; which nodes a partition has, the nodes say."""
    return tuple(_partition(fields) for fields in _records(text) if "PartitionName" in fields)


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Parse `scontrol show node --oneliner`."""
    return tuple(_node(fields) for fields in _records(text) if "NodeName" in fields)


def parse_minutes(text: str) -> int | None:
    """Parse a time as Slurm writes it ([days-]hours:minutes:seconds), begun minutes counted; None: no limit, not set.

    Slurm also writes minutes:seconds, and days-hours.
    """
    if text.upper() in {"", "UNLIMITED", "INFINITE", "NONE", "N/A", "NOT_SET", "PARTITION_LIMIT"}:
        return None
    days, has_days, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if has_days or len(parts) == 3:  # noqa: PLR2004  (hours, minutes and seconds)
        hours, minutes, seconds = (*parts, 0, 0)[:3]
    else:
        hours, (minutes, seconds) = 0, (*parts, 0)[:2]
    return (int(days or 0) * 24 + hours) * 60 + minutes + (seconds > 0)


def _records(text: str) -> Iterable[Mapping[str, str]]:
    """Split lines of Name=value; a value may have blanks (OS=Linux 6.1 #1 SMP), a name none."""
    for line in text.splitlines():
        found = re.findall(r"(\S+?)=(.*?)(?=\s+[A-Za-z][A-Za-z_:/]*=|\s*$)", line)
        # Backwards: the first of a name counts, because a comment, which comes last, may say anything.
        yield {name: _given(value.strip()) for name, value in reversed(found)}


def _partition(fields: Mapping[str, str]) -> Partition:
    max_nodes = fields.get("MaxNodes", "UNLIMITED")
    return Partition(
        name=fields["PartitionName"],
        is_default=fields.get("Default") == "YES",
        state=fields.get("State", ""),
        max_time_min=parse_minutes(fields.get("MaxTime", "")),
        default_time_min=parse_minutes(fields.get("DefaultTime", "")),
        max_nodes=int(max_nodes) if max_nodes.isdecimal() else None,
        grace_time_s=int(fields.get("GraceTime") or 0),
        preempt_mode=fields.get("PreemptMode", ""),
        priority_tier=int(fields.get("PriorityTier") or 1),
        allowed_qos=_all_or_some(fields.get("AllowQos", "ALL")),
    )


def _node(fields: Mapping[str, str]) -> Node:
    return Node(
        name=fields["NodeName"],
        num_cpus=int(fields.get("CPUEfctv") or fields.get("CPUTot") or 0),
        memory_mb=int(fields.get("RealMemory") or 0) - int(fields.get("MemSpecLimit") or 0),
        gpus_by_type=_gpus(fields.get("Gres", "")),
        state=fields.get("State", ""),
        features=_names(fields.get("AvailableFeatures", "")),
        partitions=_names(fields.get("Partitions", "")),
    )


def _gpus(gres: str) -> Mapping[str, int]:
    """Read gpu:4, gpu:a100:4(S:0-1), gpu:h100:no_consume:2 and the like among other resources."""
    counts: dict[str, int] = {}
    pattern = r"(?:^|,)gpu(?::([^:,()]+))??(?::no_consume)?(?::(\d+))?(?:\([^)]*\))?(?=,|$)"
    for kind, number in re.findall(pattern, gres):
        counts[kind] = counts.get(kind, 0) + int(number or 1)
    return counts


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


def _all_or_some(text: str) -> tuple[str, ...] | None:
    return None if text == "ALL" else _names(text)


def _given(value: str) -> str:
    return "" if value in {"(null)", "(null type)", "N/A"} else value
