"""Starts of actors in the slots of those that were lost, beside the run's other work: engines and judges.

Whether, when and under which name an actor starts is decided in `rollpacker.core.restarts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from rollpacker.core.errors import EngineFailed, InternalError, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.core.restarts import Restarts
from rollpacker.protocols.backend import Limit
from rollpacker.protocols.engine import Engine

Answer = TypeVar("Answer")

_DEADLINES = "a key of backend.deadlines"

StartActor = Callable[[EngineId, EngineId], Awaitable[None]]
"""Given the slot and the name of the actor that is to take it: starts it, within a deadline of its own."""


class Starts:
    """The starts that are under way.

    Args:
        start: Starts an actor; None where none can be started, and none ever is.
        on_started: Told of an actor that has started.
        on_failed: Told of an actor that has not, and why.
        on_error: Told of an error that is no actor's failure.
    """

    def __init__(
        self,
        start: StartActor | None,
        *,
        on_started: Callable[[EngineId], None],
        on_failed: Callable[[EngineId, RollpackerError], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._start = start
        self._on_started = on_started
        self._on_failed = on_failed
        self._on_error = on_error
        self._under_way: dict[EngineId, asyncio.Task[None]] = {}
        self._cancelled: list[asyncio.Task[None]] = []

    def begin(self, slot: EngineId, name: EngineId) -> None:
        """Start an actor in a slot."""
        self._under_way[name] = asyncio.create_task(self._run(slot, name), name=f"replacement of {slot}")

    def cancel(self, name: EngineId) -> None:
        """Give up a start; `settle` waits for its end."""
        task = self._under_way.pop(name, None)
        if task is not None:
            task.cancel()
            self._cancelled.append(task)

    async def settle(self) -> None:
        """Wait until the starts that were cancelled have ended."""
        cancelled, self._cancelled = self._cancelled, []
        await asyncio.gather(*cancelled, return_exceptions=True)

    async def stop(self) -> None:
        """End what is under way."""
        for name in list(self._under_way):
            self.cancel(name)
        await self.settle()

    async def _run(self, slot: EngineId, name: EngineId) -> None:
        assert self._start is not None
        try:
            await self._start(slot, name)
        except InternalError as error:
            self._on_error(error)
        except RollpackerError as error:
            self._under_way.pop(name, None)
            self._on_failed(name, error)
        except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
            self._on_error(error)
        else:
            self._under_way.pop(name, None)
            self._on_started(name)


def what_follows(restarts: Restarts, actor: EngineId, *, setting: str, max_restarts: int | None) -> str:
    """Say what follows the loss of an actor.

    Args:
        restarts: As they stand after the loss.
        actor: That was lost, or did not start.
        setting: The key of `max_restarts`.
        max_restarts: None where actors cannot be replaced.
    """
    if max_restarts is None:
        return "It cannot be replaced."
    following = restarts.next_restart(actor)
    if following is None:
        return f"It is not replaced: {setting}={max_restarts}."
    return f"{following.successor} is to take its place: restart {following.number} of {max_restarts}."


async def ask_each(
    limit: Limit,
    engines: Mapping[EngineId, Engine],
    what: str,
    question: Callable[[Engine], Awaitable[Answer]],
    deadline_s: float,
    *,
    lose: Callable[[EngineId, EngineFailed], object],
    setting: str = _DEADLINES,
) -> dict[EngineId, Answer]:
    """Ask several engines at once; those that fail, or do not answer in time, are lost. All else is raised."""
    asked = {
        engine_id: within_or_failed(limit, deadline_s, f"{engine_id} {what}", question(engine), setting=setting)
        for engine_id, engine in engines.items()
    }
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    given: dict[EngineId, Answer] = {}
    for engine_id, answer in zip(asked, answers, strict=True):
        if isinstance(answer, EngineFailed):
            lose(engine_id, answer)
        elif isinstance(answer, BaseException):
            raise answer
        else:
            given[engine_id] = answer
    return given


async def within_or_failed(
    limit: Limit, deadline_s: float, what: str, answer: Awaitable[Answer], *, setting: str = _DEADLINES
) -> Answer:
    """Await an answer for at most so long; raises `EngineFailed`, because one slow actor is no reason to end a run.

    Args:
        limit: Ends the wait.
        deadline_s: How long.
        what: Is waited for.
        answer: Comes, or does not.
        setting: The key that sets the deadline.
    """
    try:
        async with limit(deadline_s) as scope:
            return await answer
    except TimeoutError:
        if not scope.expired():
            raise
    raise EngineFailed(f"Waited {deadline_s:g} s for {what}, in vain.", f"That is set by {setting}.")
