"""Checks of one node: limits, GPUs, MPS, code sandbox, network, and the folder for Ray.

The facts of other nodes arrive as JSON (`node_report`), so gathering and checking are separate. What bubblewrap lacks
is said in `rollpacker.rewards.sandbox.sandbox_check`, which a run asks too.
"""

from __future__ import annotations

import os
import resource
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import RollpackerError, UserError
from rollpacker.launch.container import SHARED_MEMORY
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem, problem_of, warning
from rollpacker.processes.programs import run_program
from rollpacker.rewards.sandbox.sandbox_check import check_sandbox
from rollpacker.runtime.job.allocation import named_gpus
from rollpacker.runtime.job.memory import job_memory
from rollpacker.runtime.placing.host import has_mps_daemon
from rollpacker.runtime.ray.node_address import free_port, node_address
from rollpacker.runtime.ray.private_folder import LONGEST_SCRATCH_BYTES, private_folder

_ENOUGH_FILES = 8192
"""Ray opens several for each worker and connection; it recommends 65536, which only large clusters need."""

_RAY_MB = 2048
"""Beside the object store: an idle Ray took 430 MB, the rest is for the driver and torch."""

_DEADLINE_S = 30.0
"""nvidia-smi of a node whose driver was idle takes several seconds for eight GPUs."""

_START_MPS = f"""\
setup:
  - export
    CUDA_MPS_PIPE_DIRECTORY={SHARED_MEMORY}/mps-$SLURM_JOB_ID
  - export
    CUDA_MPS_LOG_DIRECTORY=$CUDA_MPS_PIPE_DIRECTORY
  - srun --overlap --ntasks-per-node=1
    nvidia-cuda-mps-control -f &"""
"""Lines of a cluster's file: a shell would take their quotes, and expand their variables when it submits. They are
folded to fit a terminal of 80 columns, where wrapped ones could not be copied.

They run on the first node only. The daemon stays in a step of its own: when a step is over, Slurm ends what it left
behind (-d). /dev/shm is the node's in an image, too."""

_SANDBOX = "code sandbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Of this process on this node."""

    num_files: int | None
    """That a process may open; None: no limit."""
    num_files_possible: int | None
    """To which it may raise that."""
    locked_bytes: int | None
    """Memory that may be locked, as RDMA does; None: no limit."""
    has_infiniband: bool
    shared_bytes_free: int
    """Of /dev/shm."""
    memory_bytes: int | None
    """That the job or this container may use; None: the machine's."""


def gather_limits(environment: Mapping[str, str]) -> Limits:
    """Read the limits of this process."""
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        shared = os.statvfs(SHARED_MEMORY)
        shared_bytes_free = shared.f_bavail * shared.f_frsize
    except OSError:
        shared_bytes_free = 0
    return Limits(
        num_files=_finite(files),
        num_files_possible=_finite(most_files),
        locked_bytes=_finite(locked),
        has_infiniband=Path("/dev/infiniband").is_dir(),
        shared_bytes_free=shared_bytes_free,
        memory_bytes=job_memory(environment),
    )


def check_limits(limits: Limits, object_store_mb: int) -> Iterator[Finding]:
    """Check open files, /dev/shm, memory and locked memory for one node of a run."""
    files, possible = limits.num_files, limits.num_files_possible
    can_raise = possible is None or possible >= _ENOUGH_FILES
    yield probe(
        "open files",
        f"{files or 'any number'} (ulimit -n)",
        (
            files is not None and files < _ENOUGH_FILES,
            "warning",
            f"only {files} (ulimit -n)",
            "Add `ulimit -n 65536` to cluster.setup, or to the shell that submits: Slurm passes its limits on."
            if can_raise
            else "Ask for a higher hard limit (ulimit -Hn), also of slurmd (LimitNOFILE).",
        ),
    )
    free_mb = limits.shared_bytes_free >> 20
    needed = f"in {SHARED_MEMORY} for backend.object_store_mb={object_store_mb}"
    yield probe(
        "shared memory",
        f"{limits.shared_bytes_free / 1e9:.0f} GB free {needed}",
        (
            free_mb < object_store_mb,
            "problem",
            f"only {free_mb:,} MB free {needed}",
            ("Lower backend.object_store_mb, or remove old files (`ls -l /dev/shm`); in an image, bind the host's."),
        ),
    )
    # /dev/shm counts against the memory limit
    memory_mb = None if limits.memory_bytes is None else limits.memory_bytes >> 20
    yield probe(
        "memory",
        "not limited below the machine's" if memory_mb is None else f"{memory_mb:,} MB on this node",
        (
            memory_mb is not None and memory_mb < object_store_mb + _RAY_MB,
            "problem",
            (
                f"only {memory_mb or 0:,} MB on this node; Ray takes {_RAY_MB} MB and its object store "
                f"{object_store_mb} MB before there is any model"
            ),
            "Raise cluster.memory_gb_per_node, or lower backend.object_store_mb.",
        ),
    )
    locked = limits.locked_bytes
    yield probe(
        "locked memory",
        "as much as RDMA wants (ulimit -l)" if limits.has_infiniband else "no RDMA devices, so none is needed",
        (
            limits.has_infiniband and locked is not None,
            "warning",
            f"only {(locked or 0) >> 10} KiB (ulimit -l), and this node has RDMA devices",
            "NCCL may fall back to slow sockets or fail. Ask for LimitMEMLOCK=infinity of slurmd.",
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that Slurm gave to this process, and those that the driver lists."""

    visible: tuple[str, ...] | None
    """As CUDA_VISIBLE_DEVICES names them; None: it is not set."""
    num_given: int | None
    """By Slurm on this node; None: Slurm does not say."""
    names: tuple[str, ...] | None
    """As nvidia-smi lists them; None: there is no nvidia-smi."""
    complaint: str
    """Why nvidia-smi failed; empty when it did not."""
    num_strangers: int
    """Processes that compute on them already."""


def gather_gpus(environment: Mapping[str, str]) -> Gpus:
    """Read the GPUs of this node."""
    given = environment.get("SLURM_GPUS_ON_NODE", "")
    names, complaint = _ask("--query-gpu=name")
    computing, _ = _ask("--query-compute-apps=pid") if names else ((), "")
    return Gpus(
        visible=named_gpus(environment),
        num_given=int(given) if given.isdecimal() else None,
        names=names,
        complaint=complaint,
        num_strangers=len(computing or ()),
    )


def check_gpus(gpus: Gpus, num_needed: int) -> Finding:
    """Check the GPUs of a node that needs so many."""
    names, given = gpus.names or (), gpus.num_given or 0
    num_visible = len(names) if gpus.visible is None else len(gpus.visible)
    kinds = ", ".join(sorted(set(names)))
    return probe(
        "GPUs",
        f"{num_visible} ({kinds})" if num_visible else "none here, and none are asked for",
        (
            given > 0 and gpus.visible is None,
            "problem",
            f"Slurm gave {given} on this node, and CUDA_VISIBLE_DEVICES is not set",
            "Ask for device files in the cluster's gres.conf (File=/dev/nvidia[0-7], or AutoDetect=nvml).",
        ),
        (
            num_visible < given,
            "problem",
            f"Slurm gave {given} on this node, and CUDA_VISIBLE_DEVICES names {num_visible}",
            "Something changed CUDA_VISIBLE_DEVICES: look at cluster.environment, cluster.setup and ~/.bashrc.",
        ),
        (
            num_visible < num_needed,
            "problem",
            f"{num_visible} on this node, and cluster.gpus_per_node={num_needed}",
            f"Ask Slurm for them: srun --gpus-per-node={num_needed}",
        ),
        (
            num_visible > 0 and gpus.names is None,
            "warning",
            f"{num_visible} given, and there is no nvidia-smi to see them with",
            "In a container, run the image with --nv; on a node, ask for NVIDIA's driver.",
        ),
        (
            num_visible > 0 and (bool(gpus.complaint) or len(names) < num_visible),
            "problem",
            f"{num_visible} given, and the driver says: {gpus.complaint or f'nvidia-smi lists {len(names)}'}",
            "Leave this node out (cluster.sbatch={exclude: NODE}), and report it to the cluster's administrators.",
        ),
        (
            num_visible > 0 and gpus.num_strangers > 0,
            "warning",
            f"{num_visible} ({kinds}), and {gpus.num_strangers} processes compute on this node's already",
            "`nvidia-smi` says whose they are; an engine's KV cache takes what is free.",
        ),
    )


def check_mps(environment: Mapping[str, str]) -> Finding:
    """Check the MPS daemon, with which a judge and an engine compute on one GPU at the same time."""
    return probe(
        "MPS",
        "its daemon answers, so that judges and engines may share a GPU's processors",
        (
            not has_mps_daemon(environment),
            "warning",
            (
                "placement.judge is set, and no daemon answers: a judge and an engine on the same GPU take time slices "
                "in turn"
            ),
            (
                "An image sees one that answers in /tmp/nvidia-mps with "
                "cluster.container.binds=[/tmp/nvidia-mps]. To start one on every node, add these lines to the "
                f"cluster's file (conf/cluster), behind those that its setup has:\n{_START_MPS}"
            ),
        ),
    )


def check_code_sandbox(reward: RewardSection, try_out: Callable[[SandboxSection], str] = check_sandbox) -> Finding:
    """Start the reward's sandbox; a failure is a problem only for a run that uses it."""
    try:
        said = try_out(reward.sandbox)
    except UserError as error:
        found = problem_of(_SANDBOX, error)
        return found if "sandbox" in reward.names else replace(found, level="warning")
    if reward.sandbox.isolation == "rlimits":
        return warning(_SANDBOX, said, "Set reward.sandbox.isolation=bubblewrap, unless all programs are trusted.")
    return fine(_SANDBOX, said)


def check_network(
    node: str, cluster: ClusterSection, environment: Mapping[str, str], *, is_alone: bool
) -> Iterator[Finding]:
    """Check the address, ports and scratch folder of this node, which other nodes reach unless it `is_alone`."""
    try:
        address = node_address(node, cluster.network_interface, is_alone=is_alone)
    except RollpackerError as error:
        yield problem_of("address", error)
    else:
        yield fine("address", f"{node} is {address}")
        yield check_port(address)
    yield check_scratch(cluster, environment)


def check_port(address: str) -> Finding:
    """Check whether the system has a free port."""
    try:
        port = free_port(address)
    except OSError as error:
        return problem(
            "ports",
            f"none found on {address} ({error.strerror})",
            "Look at what holds so many (`ss -s`), and whether this node has the address (`ip address`).",
        )
    return fine("ports", f"free ones exist, such as {port}")


def check_scratch(cluster: ClusterSection, environment: Mapping[str, str]) -> Finding:
    """Check the folders for Ray's sockets; the one that is made is removed."""
    try:
        folder = private_folder(cluster.scratch, environment)
    except RollpackerError as error:
        return problem_of("scratch", error)
    folder.remove()
    return fine("scratch", f"{folder.path.parent}, short enough for sockets (at most {LONGEST_SCRATCH_BYTES} bytes)")


def _ask(query: str) -> tuple[tuple[str, ...] | None, str]:
    """Return the rows of nvidia-smi, and its complaint when it fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None, ""
    outcome = run_program([program, query, "--format=csv,noheader"], deadline_s=_DEADLINE_S)
    rows = tuple(line.strip() for line in outcome.output.splitlines() if line.strip())
    return (rows, "") if outcome.is_success else ((), " ".join(rows) or outcome.complaint)


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit
