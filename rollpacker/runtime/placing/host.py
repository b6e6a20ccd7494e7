"""The resources of this process on this machine: cores, memory, GPUs; from files and the environment."""

from __future__ import annotations

import errno
import functools
import os
import platform
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rollpacker.processes.programs import run_program
from rollpacker.runtime.job.allocation import named_gpus
from rollpacker.runtime.job.memory import cgroup_memory

DRIVER_GPUS = Path("/proc/driver/nvidia/gpus")
"""Where NVIDIA's driver has a folder for each GPU; in a container for each of those that it was given."""

MPS_SHARE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""The largest share of a GPU's processors that a client of CUDA's Multi-Process Service uses."""

_UNKNOWN = "GPU of unknown name"

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


class MemoryNow(NamedTuple):
    """Of a GPU, in bytes."""

    free: float
    """Whoever has the rest."""
    total: float


def gpu_memory_now(environment: Mapping[str, str]) -> list[MemoryNow | None]:
    """The memory of each GPU that this process may use; None where the driver does not say, as of a part by MIG."""
    found: dict[str, MemoryNow] = {}
    for index, line in enumerate(_query_driver("uuid,memory.free,memory.total")):
        uuid, *sizes = line.split(", ")
        with suppress(ValueError, TypeError):
            found[uuid] = found[str(index)] = MemoryNow(*(float(size) * (1 << 20) for size in sizes))  # MiB
    names = named_gpus(environment)
    return [found.get(name) for name in (map(str, range(visible_gpus(environment))) if names is None else names)]


@functools.cache
def _ask_driver(field: str) -> tuple[str, ...]:
    """Ask what does not change."""
    return _query_driver(field)


def _query_driver(fields: str) -> tuple[str, ...]:
    """Ask nvidia-smi, which comes with the driver and reads NVML; takes up to seconds where the driver was idle.

    A line per GPU; none without the driver.
    """
    command = ("nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    try:
        answer = run_program(command, deadline_s=_DRIVER_S)
    except OSError:
        return ()
    return tuple(line.strip() for line in answer.output.splitlines() if line.strip()) if answer.is_success else ()


def memory_in_name(gpu: str) -> float | None:
    """Bytes of a GPU whose name says so, as `NVIDIA H100 80GB HBM3` does; that of a GH200 says what Grace has."""
    match = re.search(r"\b(\d+) ?GB", gpu)
    return float(match[1]) * 1e9 if match and "GH200" not in gpu else None


def hardware_name(*, has_gpus: bool) -> str:
    """Name the GPUs that this process may use, or this machine's processor and the cores that it may use."""
    if has_gpus:
        counts = Counter(_visible_models(os.environ))
        return ", ".join(f"{count} x {model}" for model, count in counts.items()) or "GPUs of unknown name"
    return f"{_line_of(Path('/proc/cpuinfo'), 'model name') or platform.machine()}, {usable_cpus()} cores"


def _visible_models(environment: Mapping[str, str]) -> list[str]:
    """Of each GPU that this process may use; one that a UUID names is of the machine's model if that has only one."""
    models = [model or _UNKNOWN for model in _gpu_models()]
    named = named_gpus(environment)
    if named is None:
        return models
    common = models[0] if len(set(models)) == 1 else _UNKNOWN
    return [models[int(name)] if name.isdecimal() and int(name) < len(models) else common for name in named]


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
