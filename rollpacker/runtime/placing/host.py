"""The resources of this process on this machine: cores, memory, GPUs; from files and the environment."""

from __future__ import annotations

import errno
import functools
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rollpacker.runtime.job.allocation import named_gpus
from rollpacker.runtime.job.memory import cgroup_memory

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each GPU; in a container for each of those that it was given."""

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The largest share of a GPU's processors that a client of CUDA's Multi-Process Service uses."""

_DRIVER_S = 30.0
"""Deadline of nvidia-smi, which takes several seconds for eight GPUs whose driver was idle."""


def usable_cpus() -> int:
    """Cores that this process may use, which on a shared node is less than the machine has."""
    return len(os.sched_getaffinity(0))


def usable_memory() -> int:
    """Bytes that this process may use, which in a container or a job is less than the machine has."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = cgroup_memory()
    return machine if limit is None else min(machine, limit)


def visible_gpus(environment: Mapping[str, str] = os.environ, driver: Path | None = None) -> int:
    """GPUs that this process may use: those that CUDA_VISIBLE_DEVICES names; where it is not set, the driver's."""
    named = named_gpus(environment)
    return len(_gpu_models(driver)) if named is None else len(named)


def names_of_gpus(gpus: Sequence[int], environment: Mapping[str, str]) -> str:
    """The CUDA_VISIBLE_DEVICES of a process that sees only these of the GPUs that are visible now.

    Under Slurm it may name 2 and 3, or GPUs by their UUIDs; GPU 0 of the run is then the first of them. Where it names
    none, all of the machine's are visible, or they are not real (`backend.num_gpus` on a machine without): their
    numbers are their names.
    """
    named = named_gpus(environment)
    return ",".join(named[gpu] if named else str(gpu) for gpu in gpus)


def has_mps_daemon(environment: Mapping[str, str]) -> bool:
    """True when a daemon of CUDA's Multi-Process Service listens where CUDA clients look for it."""
    control = Path(environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")) / "control"  # noqa: S108  CUDA's own
    if control.is_fifo():
        with suppress(OSError):  # ENXIO: it has no reader
            os.close(os.open(control, os.O_WRONLY | os.O_NONBLOCK))
            return True
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        answer = asking.connect_ex(str(control))
        return answer in {0, errno.EPROTOTYPE}  # it listens, if for messages of another kind
    return False


def gpu_memory() -> float | None:
    """Bytes of each GPU of this machine, by its name or its driver; None where neither says, or where they differ."""
    sizes = {memory_in_name(name) for name in _gpu_models()}
    if None in sizes:
        sizes = set(_memory_by_driver())
    return sizes.pop() if len(sizes) == 1 else None


def _memory_by_driver() -> frozenset[float]:
    try:
        return frozenset(float(line) * (1 << 20) for line in _ask_driver("memory.total"))  # MiB
    except ValueError:
        return frozenset()


@functools.cache
def _ask_driver(field: str) -> tuple[str, ...]:
    """Ask nvidia-smi, which comes with the driver and reads NVML; takes up to seconds where the driver was idle.

    A line per GPU; none without the driver.
    """
    command = ("nvidia-smi", f"--query-gpu={field}", "--format=csv,noheader,nounits")
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_DRIVER_S, check=True)  # noqa: S603  the driver's own
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in answer.stdout.splitlines() if line.strip())


def memory_in_name(gpu: str) -> float | None:
    """Bytes of a GPU whose name says so, as `NVIDIA H100 80GB HBM3` does; that of a GH200 says what Grace has."""
    match = re.search(r"\b(\d+) ?GB", gpu)
    return float(match[1]) * 1e9 if match and "GH200" not in gpu else None


def hardware_name(*, has_gpus: bool) -> str:
    """Name this machine's GPUs, or its processor and the cores that this process may use."""
    if has_gpus:
        names = _gpu_models()
        return f"{len(names)} x {names[0]}" if names and names[0] else "GPUs of unknown name"
    return f"{_line_of(Path('/proc/cpuinfo'), 'model name') or platform.machine()}, {usable_cpus()} cores"


def _gpu_models(driver: Path | None = None) -> list[str]:
    """Of the machine's GPUs, or of `driver`. Some sandboxes hide the driver's folder; nvidia-smi works there."""
    folder = driver or DRIVER_GPUS
    models = [_line_of(file, "Model") for file in sorted(folder.glob("*/information"))]
    return models if models or driver else list(_ask_driver("name"))


def _line_of(file: Path, label: str) -> str:
    """The value of the first line `label: value`; empty when there is none."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == label:
                return value.strip()
    return ""
