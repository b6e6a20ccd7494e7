"""Which engines hold new weights: each confirms them by a checksum, within a bounded time.

    half of the engines that have not failed have answered ──`straggler_s`──> all others are lost

An engine that dies, that is late, or that claims to hold something else is lost, and its error says why; the others go
on. Only when no engine holds the weights and one of them claims to hold something else is the transfer itself suspect;
one engine that is served later says nothing about it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.protocols.tasks import end_tasks
from rollpacker.transfer.polled_timeout import NUM_LOOKS

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping
    from typing import Any

    from rollpacker.core.ids import EngineId


async def those_that_do_not_confirm(
    answers: Mapping[EngineId, Coroutine[Any, Any, str]],
    *,
    policy_version: int,
    checksum: str,
    straggler_s: float,
    are_all: bool = True,
) -> dict[EngineId, EngineFailed]:
    """Await the engines' checksums, which must be that of the version; returns those that are lost, with the reason.

    Raises:
        WeightSyncFailed: `are_all`, and none holds what was sent, and some hold something else.
    """
    tasks = {engine: asyncio.create_task(answer, name=f"weights of {engine}") for engine, answer in answers.items()}
    try:
        await _until_the_rest_is_late(list(tasks.values()), straggler_s)
        lost: dict[EngineId, EngineFailed] = {}
        torn: dict[EngineId, str] = {}
        for engine, task in tasks.items():
            error = task.exception() if task.done() else _too_late(engine, straggler_s)
            if isinstance(error, EngineFailed):
                lost[engine] = error
            elif error is not None:
                raise error
            elif not _is_right(task.result(), checksum):
                torn[engine] = task.result()
    finally:
        await end_tasks(*tasks.values())
    claims = {
        engine: f"{engine} holds weights with checksum {claimed}; version {policy_version} has {checksum}."
        for engine, claimed in torn.items()
    }
    if are_all and torn and len(lost) + len(torn) == len(tasks):
        raise WeightSyncFailed(
            " ".join(claims.values()),
            "No engine holds what the trainer sent.",
            "The transfer was torn or stale; resume from the last checkpoint with run.resume=auto.",
        )
    return lost | {engine: EngineFailed(claim) for engine, claim in claims.items()}


async def _until_the_rest_is_late(tasks: list[asyncio.Task[str]], straggler_s: float) -> None:
    """Wait for all tasks; once half of those that have not failed have answered, no longer than `straggler_s`."""
    pending, num_answered = set(tasks), 0
    while len(pending) > num_answered:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        num_answered += sum(task.exception() is None for task in done)
    for _ in range(NUM_LOOKS):  # and not once: the process may be stopped meanwhile
        if pending:
            _, pending = await asyncio.wait(pending, timeout=straggler_s / NUM_LOOKS)


def _is_right(claimed: str, checksum: str) -> bool:
    return claimed == checksum


def _too_late(engine: EngineId, straggler_s: float) -> EngineFailed:
    return EngineFailed(
        f"{engine} has not loaded the weights {straggler_s:g} s after half of the engines had.",
        "The limit is weight_sync.timeout_s; where files are read, half of backend.deadlines.weight_sync_s if longer.",
    )
