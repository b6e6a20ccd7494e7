"""What a snapshot of the scheduler must have in common with the settings that restore it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rollpacker.core.errors import CheckpointError
from rollpacker.core.settings import SchedulerSettings

SNAPSHOT_FORMAT: Final = 6
"""Raised by one whenever a machine's snapshot changes its meaning."""


def kind_of(settings: SchedulerSettings) -> str:
    """The kind of batching: a snapshot is restored by the same."""
    kind: str = "asynchronous" if settings.asynchronous else settings.batching
    if settings.length_history:
        kind += " with length history"
    return f"{kind} with dynamic sampling" if settings.dynamic_sampling else kind


def check_snapshot(settings: SchedulerSettings, snapshot: Mapping[str, Any]) -> None:
    """Refuse a snapshot of another format, another kind of batching, or other machines.

    Evaluation is left out: between two steps it holds nothing that a run with other held-out sets could not go on from.
    So is what changes no result: speculative decoding, and what follows from the number of engines, their degrees and
    their GPUs (parallelism, lending).

    Raises:
        CheckpointError: It is one of these.
    """
    machines = {
        "reward_budget": settings.reward_budget,
        "environments": settings.environment,
    }
    for key, found, wanted in (
        ("format", snapshot.get("format"), SNAPSHOT_FORMAT),
        ("kind", snapshot.get("kind"), kind_of(settings)),
        (
            "machines",
            [name for name in machines if snapshot.get(name)],
            [name for name, wanted in machines.items() if wanted],
        ),
    ):
        if found != wanted:
            raise CheckpointError(
                f"The scheduler's snapshot has {key}={found!r}.",
                f"This run restores {key}={wanted!r}.",
                "Resume with the configuration and version that wrote the checkpoint, or choose a fresh run.dir.",
            )
