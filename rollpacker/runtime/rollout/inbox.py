"""Facts on their way to the driver, which takes them out in order of arrival.

    engines ── collect ──┐
    reward ──────────────┼─> inbox ── collect ──> Driver
    replacements ────────┘

One pump per engine collects what it has finished. An exception in the inbox ends the run: the driver raises it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.rollout import Response, Verdict
from rollpacker.protocols.tasks import end_tasks


class ResponsesArrived(NamedTuple):
    """An engine has finished or aborted responses."""

    engine: EngineId
    responses: Sequence[Response]


class VerdictsArrived(NamedTuple):
    """The reward has scored responses."""

    verdicts: Sequence[Verdict]


class EngineDied(NamedTuple):
    """An engine does not answer any more."""

    engine: EngineId
    error: EngineFailed


class EngineReady(NamedTuple):
    """An engine that takes a lost one's place has started and holds its weights."""

    engine: EngineId


Fact = ResponsesArrived | VerdictsArrived | EngineDied | EngineReady | Exception


class Inbox:
    """Collects facts of engines, reward and replacements."""

    def __init__(self) -> None:
        self._facts: Arrivals[Fact] = Arrivals()
        self._pumps: dict[EngineId, asyncio.Task[None]] = {}

    def put(self, fact: Fact) -> None:
        """Add one fact."""
        self._facts.put([fact])

    async def collect(self) -> Sequence[Fact]:
        """Wait until a fact is there, and take all that are."""
        return await self._facts.collect()

    def listen(self, engine_id: EngineId, engine: Engine, on_failure: Callable[[EngineId, EngineFailed], None]) -> None:
        """Collect an engine's responses from now on; its failure is told at once, ahead of the facts that wait."""
        pump = self._pump(engine_id, engine, on_failure)
        self._pumps[engine_id] = asyncio.create_task(pump, name=f"pump: responses of {engine_id}")

    def ignore(self, engine_id: EngineId) -> None:
        """Listen to an engine no longer: it is lost."""
        pump = self._pumps.get(engine_id)
        if pump is not None:
            pump.cancel()

    async def stop(self) -> None:
        """Listen to no engine any more."""
        await end_tasks(*self._pumps.values())

    async def _pump(
        self, engine_id: EngineId, engine: Engine, on_failure: Callable[[EngineId, EngineFailed], None]
    ) -> None:
        try:
            while True:
                self.put(ResponsesArrived(engine_id, await engine.collect()))
        except EngineFailed as error:
            on_failure(engine_id, error)
            self.put(EngineDied(engine_id, error))
        except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
            self.put(error)
