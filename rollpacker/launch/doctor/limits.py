"""How much of this machine a process may use: open files, memory, shared memory, locked memory."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rollpacker.launch.container import SHARED_MEMORY
from rollpacker.launch.doctor.findings import Finding, fine, problem, warning

_MEBIBYTE = 1 << 20

_ENOUGH_FILES = 8192
"""Ray opens several for each worker and connection; its own advice is 65536, which only large clusters need."""

_RAY_MB = 2048
"""Beside the object store: 430 MB of an idle Ray were measured, the rest is left for the driver and torch."""


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
    """Look at this process."""
    files, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    try:
        shared = os.statvfs(SHARED_MEMORY)
        shared_bytes_free = shared.f_bavail * shared.f_frsize
    except OSError:
        shared_bytes_free = 0
    memory_mb = environment.get("SLURM_MEM_PER_NODE", "")
    limits = [int(memory_mb) * _MEBIBYTE] if memory_mb.isdecimal() and int(memory_mb) else []
    if (group := _cgroup_memory(Path("/proc/self/cgroup"), Path("/sys/fs/cgroup"))) is not None:
        limits.append(group)
    return Limits(
        num_files=_finite(files),
        num_files_possible=_finite(most_files),
        locked_bytes=_finite(locked),
        has_infiniband=Path("/dev/infiniband").is_dir(),
        shared_bytes_free=shared_bytes_free,
        memory_bytes=min(limits, default=None),
    )


def check_limits(limits: Limits, object_store_mb: int) -> Iterator[Finding]:
    """Judge them for one node of a run."""
    yield check_open_files(limits)
    yield check_shared_memory(limits, object_store_mb)
    yield check_memory(limits, object_store_mb)
    yield check_locked_memory(limits)


def check_open_files(limits: Limits) -> Finding:
    """Judge `ulimit -n`."""
    if limits.num_files is None or limits.num_files >= _ENOUGH_FILES:
        return fine("open files", f"{limits.num_files or 'any number'} (ulimit -n)")
    can_raise = limits.num_files_possible is None or limits.num_files_possible >= _ENOUGH_FILES
    remedy = (
        "Add `ulimit -n 65536` to cluster.setup, or to the shell that submits: Slurm hands its limits on."
        if can_raise
        else "Ask for a higher hard limit (ulimit -Hn), also of slurmd (LimitNOFILE)."
    )
    return warning("open files", f"only {limits.num_files} (ulimit -n)", remedy)


def check_shared_memory(limits: Limits, object_store_mb: int) -> Finding:
    """Judge /dev/shm, where Ray's object store lies."""
    free_mb = limits.shared_bytes_free // _MEBIBYTE
    needed = f"in {SHARED_MEMORY} for backend.object_store_mb={object_store_mb}"
    if free_mb >= object_store_mb:
        return fine("shared memory", f"{limits.shared_bytes_free / 1e9:.0f} GB free {needed}")
    return problem(
        "shared memory",
        f"only {free_mb:,} MB free {needed}",
        "Lower backend.object_store_mb, or see what others left there (`ls -l /dev/shm`); bind the host's in an image.",
    )


def check_memory(limits: Limits, object_store_mb: int) -> Finding:
    """Judge the memory limit; /dev/shm counts against it."""
    if limits.memory_bytes is None:
        return fine("memory", "not limited below the machine's")
    memory_mb, needed_mb = limits.memory_bytes // _MEBIBYTE, object_store_mb + _RAY_MB
    text = f"{memory_mb:,} MB on this node"
    if memory_mb >= needed_mb:
        return fine("memory", text)
    return problem(
        "memory",
        f"only {text}; Ray takes {_RAY_MB} MB and its object store {object_store_mb} MB before there is any model",
        "Raise cluster.memory_gb_per_node, or lower backend.object_store_mb.",
    )


def check_locked_memory(limits: Limits) -> Finding:
    """Judge `ulimit -l`, which only RDMA needs."""
    if not limits.has_infiniband:
        return fine("locked memory", "no RDMA devices, so none is needed")
    if limits.locked_bytes is None:
        return fine("locked memory", "as much as RDMA wants (ulimit -l)")
    return warning(
        "locked memory",
        f"only {limits.locked_bytes >> 10} KiB (ulimit -l), and this node has RDMA devices",
        "NCCL may fall back to slow sockets or fail. Ask for LimitMEMLOCK=infinity of slurmd.",
    )


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


def _cgroup_memory(membership: Path, root: Path) -> int | None:
    """Find the tightest memory limit of this process's control groups, of version 2 or 1; None: there is none."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    found: list[int] = []
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            base, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.lstrip("/")
        found += [limit for folder in (group, *group.parents) if (limit := _limit_in(folder / name)) is not None]
    return min(found, default=None)


def _limit_in(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    # Version 1 writes a number near 2^63 where there is no limit, version 2 `max`.
    return int(text) if re.fullmatch(r"\d+", text) and int(text) < 1 << 60 else None
