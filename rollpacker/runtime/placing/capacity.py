"""Checks that this machine, or the nodes of the job, have the processes, threads and memory that a run asks for.

Cores may be shared: engines and trainer work in turn, so a small machine can run more actors than it has cores, only
more slowly (the demo runs four on two). More than `MOST_PER_CORE` per core is refused. Memory cannot be shared: any
single amount larger than the machine's is refused.

Imports neither ray nor torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.config.mistakes import raise_mistakes
from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig

MOST_PER_CORE = 16
"""Processes, reserved CPUs or threads. Sixteen actors of one core each still answer within the deadlines' defaults."""

_PROCESS_BYTES = 250 << 20
"""Of a process that has loaded torch and no model: 260 to 330 MB were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """The resources of a run."""

    where: str
    """Such as `this machine`."""
    num_nodes: int
    num_cores: int
    """Of each node."""
    memory_bytes: int | None
    """Of each node; None where it is unknown."""


def check_capacity(config: RunConfig, capacity: Capacity) -> None:
    """Raise `ConfigError` with everything that the nodes do not have."""
    raise_mistakes([*_too_many(config, capacity), *_too_large(config, capacity)])


def _too_many(config: RunConfig, capacity: Capacity) -> Iterator[ConfigError]:
    per_node = MOST_PER_CORE * capacity.num_cores
    most, judge = per_node * capacity.num_nodes, config.reward.judge
    counts = {
        "engine.num_engines": (config.engine.num_engines, config.engine.resources.num_cpus),
        "the trainer's ranks": (config.trainer.num_ranks, config.trainer.resources.num_cpus),
    }
    if config.reward.has_judge:
        counts["reward.judge.num_replicas"] = (judge.num_replicas, judge.resources.num_cpus)
    num_processes = sum(count for count, _ in counts.values())
    num_reserved = sum(count * cpus for count, cpus in counts.values())
    listed = " and ".join(f"{name}: {count:,} x {cpus:g}" for name, (count, cpus) in counts.items())
    if max(num_processes, num_reserved) > most:
        yield ConfigError(
            f"{num_processes:,} processes that reserve {num_reserved:,.10g} CPUs are too many ({listed}).",
            f"{_cores(capacity)}; {MOST_PER_CORE} processes or reserved CPUs may share a core, so that {most:,} are "
            "allowed.",
            "Lower these counts or their resources.num_cpus, or take more cores.",
        )
    elif capacity.memory_bytes is not None and num_processes * _PROCESS_BYTES > (
        capacity.memory_bytes * capacity.num_nodes
    ):
        yield ConfigError(
            f"{num_processes:,} processes are too many ({listed}).",
            f"{capacity.where.capitalize()} has {_megabytes(capacity.memory_bytes)} of memory, and a process takes "
            f"{_megabytes(_PROCESS_BYTES)} before it has a model.",
            "Lower these counts, or take more memory.",
        )
    for key, count in {
        "backend.num_cpus": config.backend.num_cpus or 0,
        "engine.num_threads": config.engine.num_threads,
        "trainer.num_threads": config.trainer.num_threads,
        "reward.judge.num_threads": judge.num_threads,
        "reward.num_workers": config.reward.num_workers,
        "reward.sandbox.num_workers": config.reward.sandbox.num_workers or 0,
    }.items():
        if count > per_node:
            yield ConfigError(
                f"{key}={count} is more than {capacity.where} could use.",
                f"{_cores(capacity)}; {MOST_PER_CORE} may share a core, so that {per_node:,} are allowed.",
                f"Lower {key}.",
            )


def _too_large(config: RunConfig, capacity: Capacity) -> Iterator[ConfigError]:
    if capacity.memory_bytes is None:
        return
    sandbox = config.reward.sandbox
    sizes = [("backend.object_store_mb", config.backend.object_store_mb, 1)]
    if config.trains and config.elastic.is_on:
        sizes.append(("elastic.bucket_mb", config.elastic.bucket_mb, 1))
    elif config.trains and config.weight_sync.transport != "object_store":
        sizes.append(("weight_sync.bucket_mb", config.weight_sync.bucket_mb, 2))
    if "sandbox" in config.reward.names:
        sizes += [(f"reward.sandbox.{key}", getattr(sandbox, key), 1) for key in ("memory_mb", "files_mb", "output_mb")]
    for key, size_mb, num_copies in sizes:
        if (size_mb * num_copies) << 20 >= capacity.memory_bytes:
            yield ConfigError(
                f"{key}={size_mb}"
                + (f", of which there are {num_copies}," if num_copies > 1 else "")
                + " would take all the memory.",
                f"{capacity.where.capitalize()} has {_megabytes(capacity.memory_bytes)}, and the actors need some of "
                "it beside.",
                f"Lower {key}, or take more memory.",
            )


def _cores(capacity: Capacity) -> str:
    cores = "1 core" if capacity.num_cores == 1 else f"{capacity.num_cores:,} cores"
    nodes = f" on each of {capacity.num_nodes:,} nodes" if capacity.num_nodes > 1 else ""
    return f"{capacity.where.capitalize()} has {cores}{nodes}"


def _megabytes(num_bytes: int) -> str:
    return f"{num_bytes >> 20:,} MB"
