"""The memory of this process's job on its node: what Slurm gave to it, and what its control groups allow.

Slurm tells a job's processes what they were given by node or by CPU. Where it counts memory by GPU, it tells only those
who asked for it so; the partition's default (DefMemPerGPU) is seen in the control groups alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

_MEMBERSHIP = Path("/proc/self/cgroup")
_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def job_memory(
    environment: Mapping[str, str], group: str = "", membership: Path = _MEMBERSHIP, root: Path = _CONTROL_GROUPS
) -> int | None:
    """Bytes that this process's job may use on this node: the smaller of both limits; None without any.

    Args:
        environment: Of a process of the job.
        group: What ends the names of a component's variables.
        membership: The file that names this process's control groups.
        root: Where the control groups are mounted.
    """
    limits = (_allocated_memory(environment, group), cgroup_memory(membership, root))
    return min((limit for limit in limits if limit is not None), default=None)


def cgroup_memory(membership: Path = _MEMBERSHIP, root: Path = _CONTROL_GROUPS) -> int | None:
    """Find the tightest memory limit of this process's control groups, of version 2 or 1; None without one."""
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


def _allocated_memory(environment: Mapping[str, str], group: str) -> int | None:
    """Bytes that Slurm gave to the job on this node; None where it gave all, or says nothing."""
    per_node = environment.get(f"SLURM_MEM_PER_NODE{group}", "")
    if per_node.isdecimal():
        return int(per_node) << 20 or None
    for unit in ("CPU", "GPU"):
        share, number = environment.get(f"SLURM_MEM_PER_{unit}{group}", ""), environment.get(f"SLURM_{unit}S_ON_NODE")
        if share.isdecimal() and number is not None and number.isdecimal():
            return (int(share) * int(number)) << 20 or None
    return None


def _limit_in(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    # Version 1 writes a number near 2^63 where there is no limit, version 2 `max`.
    return int(text) if re.fullmatch(r"\d+", text) and int(text) < 1 << 60 else None
