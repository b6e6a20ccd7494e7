"""The shape of a mini cluster, and Slurm's configuration files for it.

Pure text: nothing here starts a process or looks at the machine. Every path lies below the cluster's own folder and
every port is its own, so that clusters on one machine never meet. The settings that differ from a real cluster's are
those that make waiting short (scheduling every second, a requeued job eligible after 5 s, a lost node noticed soon) and
those that a machine without systemd and cgroups needs.
"""

from dataclasses import dataclass
from pathlib import Path

MIN_CREDENTIAL_LIFE_S = 5
"""How long a requeued job waits before it may start again. Slurm refuses less than 5 s and then takes 120 s."""


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """What the cluster has and how it behaves. The defaults suit a test of two nodes on a laptop."""

    nodes: int = 2
    """Named node1, node2, ...; node i has the address 127.0.0.(10+i)."""
    cpus: int = 8
    """Of each node, whatever the machine has."""
    memory_mb: int = 16_000
    """Of each node, whatever the machine has."""
    gpus: int = 4
    """Of each node: fake device files, which Slurm assigns by CUDA_VISIBLE_DEVICES."""
    accounting: bool = True
    """With slurmdbd and MariaDB, hence sacct. It takes a second more to start."""
    preempt_send_user_signal: bool = True
    """A preempted job gets the signal that it asked for by --signal. Otherwise SIGTERM only, as on most clusters."""
    grace_time_s: int = 15
    """From a preemption's signal to its kill, in the partitions low and lowcancel."""
    kill_wait_s: int = 30
    """From SIGTERM at the time limit, or at scancel, to SIGKILL: Slurm's default. Processes that end in time do not
    wait for it, and a busy machine needs it to end them."""
    node_timeout_s: int = 5
    """A node silent for so long is lost. It is noticed after up to three times as long, since a ping may take as
    long."""
    short_max_time_minutes: int = 5
    """The longest time that the partition short allows."""

    def __post_init__(self) -> None:
        """Refuse a shape that Slurm cannot have."""
        for name, least in (("nodes", 1), ("cpus", 1), ("memory_mb", 1), ("gpus", 0)):
            if getattr(self, name) < least:
                raise ValueError(
                    f"{name} is {getattr(self, name)}. At least {least} is possible. Ask for {name}={least} or more."
                )

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{index}" for index in range(1, self.nodes + 1))

    def address(self, node: str) -> str:
        return f"127.0.0.{11 + self.node_names.index(node)}"


@dataclass(frozen=True, kw_only=True)
class Ports:
    """Where the cluster's daemons listen."""

    controller: int
    accounting: int
    nodes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where everything lies below the cluster's folder. Socket paths must stay under 107 bytes."""

    root: Path

    @property
    def configuration(self) -> Path:
        return self.root / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        return self.root / "munge.sock"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def private(self) -> Path:
        """Readable by root only: the key, the database and its socket."""
        return self.root / "private"

    @property
    def database_socket(self) -> Path:
        return self.private / "sql.sock"

    @property
    def hosts(self) -> Path:
        return self.root / "hosts"

    def device(self, gpu: int) -> Path:
        return self.root / f"dev/nvidia{gpu}"

    def spool(self, node: str) -> Path:
        return self.root / "spool" / node

    def scratch(self, node: str) -> Path:
        """In place of the node's own disk. Ray's sockets in it may have 31 bytes for this path at most."""
        return self.root / node

    @property
    def task_prolog(self) -> Path:
        return self.root / "task_prolog"


def slurm_conf(shape: ClusterShape, *, layout: Layout, ports: Ports, hostname: str) -> str:
    """Render slurm.conf. `hostname` is the short name of this machine, which slurmctld requires."""
    return "\n".join(
        (
            _daemons(layout, ports, hostname),
            _behaviour(shape),
            _accounting(shape, layout, ports),
            _nodes(shape, ports),
            _partitions(shape),
            "",
        )
    )


def gres_conf(shape: ClusterShape, *, layout: Layout) -> str:
    """Render gres.conf: which files are the GPUs of every node."""
    if not shape.gpus:
        return ""
    files = layout.device(0).with_name(f"nvidia[0-{shape.gpus - 1}]")
    return f"NodeName={','.join(shape.node_names)} Name=gpu File={files}\n"


def slurmdbd_conf(*, layout: Layout, ports: Ports) -> str:
    """Render slurmdbd.conf. The database is found by its socket (MYSQL_UNIX_PORT), so that only root reaches it."""
    return f"""\
AuthType=auth/munge
AuthInfo=socket={layout.munge_socket}
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={ports.accounting}
SlurmUser=root
LogFile={layout.logs}/slurmdbd.log
PidFile={layout.root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


def task_prolog(*, layout: Layout) -> str:
    """Render the script whose output Slurm adds to the environment of every task: where the node's own disk is."""
    return f'#!/bin/sh\necho "export SLURM_TMPDIR={layout.scratch("$SLURMD_NODENAME")}"\n'


def hosts_file(shape: ClusterShape, *, hostnames: str, own: str) -> str:
    """Render the daemons' /etc/hosts: the machine's and the nodes' names, then what this machine's `own` file says."""
    lines = [f"127.0.0.1 localhost {hostnames}", *(f"{shape.address(node)} {node}" for node in shape.node_names)]
    return "\n".join(lines) + "\n" + own


def _daemons(layout: Layout, ports: Ports, hostname: str) -> str:
    return f"""\
ClusterName=mini
SlurmctldHost={hostname}(127.0.0.1)
SlurmctldPort={ports.controller}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={layout.munge_socket},ttl=60,cred_expire={MIN_CREDENTIAL_LIFE_S}
StateSaveLocation={layout.root}/state
SlurmdSpoolDir={layout.spool("%n")}
SlurmctldPidFile={layout.root}/slurmctld.pid
SlurmdPidFile={layout.root}/slurmd.%n.pid
SlurmctldLogFile={layout.logs}/slurmctld.log
SlurmdLogFile={layout.logs}/slurmd.%n.log
TaskProlog={layout.task_prolog}"""


def _behaviour(shape: ClusterShape) -> str:
    """Processes are followed by their parents and tasks bound to no core: cgroups and affinity are the machine's."""
    preemption = "SlurmctldParameters=preempt_send_user_signal\n" if shape.preempt_send_user_signal else ""
    gpus = "GresTypes=gpu\n" if shape.gpus else ""
    return f"""\
MpiDefault=none
SwitchType=switch/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
SlurmdParameters=config_overrides
{preemption}{gpus}ReturnToService=2
MailProg=/bin/true
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=512
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
KillWait={shape.kill_wait_s}
SlurmctldTimeout=30
SlurmdTimeout={shape.node_timeout_s}
MessageTimeout={shape.node_timeout_s}"""


def _accounting(shape: ClusterShape, layout: Layout, ports: Ports) -> str:
    if not shape.accounting:
        return "AccountingStorageType=accounting_storage/none"
    gpus = "\nAccountingStorageTRES=gres/gpu" if shape.gpus else ""
    return f"""\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={ports.accounting}
AccountingStoragePass={layout.munge_socket}{gpus}"""


def _nodes(shape: ClusterShape, ports: Ports) -> str:
    has = f"CPUs={shape.cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={shape.cpus} ThreadsPerCore=1"
    has += f" RealMemory={shape.memory_mb}" + (f" Gres=gpu:{shape.gpus}" if shape.gpus else "")
    return "\n".join(
        f"NodeName={node} NodeHostname={node} NodeAddr={shape.address(node)} Port={port} {has} State=UNKNOWN"
        for node, port in zip(shape.node_names, ports.nodes, strict=True)
    )


def _partitions(shape: ClusterShape) -> str:
    preemptible = f"Nodes=ALL MaxTime=INFINITE PriorityTier=1 GraceTime={shape.grace_time_s}"
    return f"""\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=10
PartitionName=short Nodes=ALL MaxTime={shape.short_max_time_minutes} PriorityTier=10
PartitionName=low {preemptible} PreemptMode=REQUEUE
PartitionName=lowcancel {preemptible} PreemptMode=CANCEL"""
