"""The Slurm allocation of this process: its job, its node, and what it may use there.

A job runs one task per node, all the same program; the rank of a task says what it does. Read from the environment and,
of memory, the control groups: in a container there is no Slurm command. The batch script, which runs outside, stores
what only Slurm's commands know in variables of ours (see `rollpacker/launch/`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.job.memory import job_memory
from rollpacker.runtime.job.node_list import expand_node_list

END_TIME_VARIABLE = "ROLLPACKER_JOB_END"
"""When the job reaches its time limit, in seconds since the epoch; absent or empty without a limit."""
REQUEUE_FILE_VARIABLE = "ROLLPACKER_REQUEUE_FILE"
"""The file that rank 0 writes to ask the batch script to requeue the job."""
GRACE_VARIABLE = "ROLLPACKER_GRACE_S"
"""The GraceTime of the partition, or of the QOS where the cluster preempts by QOS: what a preempted job has between the
notice and its end, in seconds; absent, empty or 0 where it is unknown."""

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

_NUM_COMPONENTS = "SLURM_HET_SIZE"
"""Set in a heterogeneous job; ours has two, the second one for environments."""
_GPU_NAME = re.compile(r"\d+|(GPU|MIG)-\S+")
"""A number, or a UUID. Whatever else ends the list, as CUDA reads it: -1, or Slurm's NoDevFiles for no GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One task of a Slurm step that has one task per node."""

    job_id: str
    """No other job has it. Slurm's commands read that of an array's last element as the whole array."""
    step_id: str
    restart_count: int
    """How often Slurm has requeued the job."""
    rank: int
    node_names: tuple[str, ...]
    """Of all nodes, by rank; those of environments come last."""
    node_name: str
    """Of this one, as the network knows it."""
    num_cpus: int
    """Cores on this node."""
    gpus: tuple[str, ...]
    """As CUDA_VISIBLE_DEVICES names this node's."""
    memory_bytes: int | None
    """On this node; None where nothing limits it."""
    end_time: float | None
    """Of the time limit, in seconds since the epoch; None without one."""
    requeue_file: Path | None
    """None without a batch script of ours: the job is not requeued."""
    grace_s: float | None = None
    """What a preempted job has until its end; None when it is unknown."""
    num_environment_nodes: int = 0
    """Nodes on which environments run and nothing else."""
    launcher_port: str = ""
    """Of the srun that started this step, the same for all ranks; empty in a heterogeneous job, where it is not."""

    @property
    def is_head(self) -> bool:
        return self.rank == 0

    @property
    def num_nodes(self) -> int:
        """Without those of environments."""
        return len(self.node_names) - self.num_environment_nodes

    @property
    def name(self) -> str:
        """Of this node, as messages and logs have it."""
        return self.node_names[self.rank]

    @property
    def is_of_environments(self) -> bool:
        """Whether this node is one of theirs."""
        return self.rank >= self.num_nodes

    @property
    def key(self) -> str:
        """Of this attempt of this job; the port tells it from that of an earlier job which had the same number.

        Numbers of jobs come again when a cluster has lost its state.
        """
        key = f"{self.job_id}.{self.step_id}.{self.restart_count}"
        return f"{key}.{self.launcher_port}" if self.launcher_port else key


def current_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """Read the task that this process is; None outside a step of Slurm, as in a batch script's own shell.

    Raises:
        ConfigError: The step has another number of tasks than one per node.
    """
    if "SLURM_JOB_ID" not in environment or "SLURM_STEP_NUM_TASKS" not in environment:
        return None
    num_tasks, node_list = int(environment["SLURM_STEP_NUM_TASKS"]), environment["SLURM_STEP_NODELIST"]
    of_run, of_environments = expand_node_list(node_list), tuple[str, ...]()
    rank, group = int(environment["SLURM_PROCID"]), ""
    if _NUM_COMPONENTS in environment:
        of_run, of_environments = (expand_node_list(environment[f"SLURM_JOB_NODELIST_HET_GROUP_{k}"]) for k in (0, 1))
        group = f"_HET_GROUP_{int(rank >= len(of_run))}"  # without it, what the first component has
    node_names = (*of_run, *(f"{name}-environments" for name in of_environments))  # they may share a node
    if len(node_names) != num_tasks:
        raise ConfigError(
            f"Slurm started {num_tasks} tasks on {node_list}.",
            "RollPacker runs once on each node; Ray starts the processes that it needs there.",
            "Start it by `srun --ntasks-per-node=1`.",
        )
    end_time = environment.get(END_TIME_VARIABLE)
    requeue_file = environment.get(REQUEUE_FILE_VARIABLE)
    return Allocation(
        job_id=environment["SLURM_JOB_ID"],
        step_id=environment.get("SLURM_STEP_ID", "0"),
        restart_count=int(environment.get("SLURM_RESTART_COUNT", "0")),
        rank=rank,
        node_names=node_names,
        node_name=environment["SLURMD_NODENAME"],
        num_cpus=int(environment.get("SLURM_CPUS_PER_TASK") or environment["SLURM_CPUS_ON_NODE"]),
        gpus=named_gpus(environment) or (),
        memory_bytes=job_memory(environment, group),
        end_time=float(end_time) if end_time else None,
        requeue_file=Path(requeue_file) if requeue_file else None,
        grace_s=float(environment.get(GRACE_VARIABLE) or 0) or None,
        num_environment_nodes=len(of_environments),
        launcher_port="" if of_environments else environment.get("SLURM_STEP_LAUNCHER_PORT", ""),
    )


def surrounding_images(environment: Mapping[str, str]) -> dict[str, str]:
    """The image that this process runs in, by the name of each runtime that says so."""
    return {
        runtime: environment[f"{runtime}_CONTAINER"]
        for runtime in ("APPTAINER", "SINGULARITY")
        if f"{runtime}_CONTAINER" in environment
    }


def named_gpus(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names, by number or UUID; None where it is not set."""
    text = environment.get(VISIBLE_GPUS)
    if text is None:
        return None
    return tuple(itertools.takewhile(_GPU_NAME.fullmatch, (name.strip() for name in text.split(","))))
