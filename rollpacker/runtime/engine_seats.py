"""Fresh engine actors in the seats of those that were lost.

Each one has the seat's reservation and GPUs, and a name and a log of its own. The process before it has ended by then,
however stuck it was, so that its memory is free and nothing of it is heard any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Surroundings
from rollpacker.runtime.actors import RemoteEngine, Seat


class EngineSeats:
    """Knows who has each engine's seat.

    Args:
        config: Of the run.
        engines: Who has them first; a seat goes by this name.
        seats: At least the engines'.
        surroundings: Where a newcomer is made known.
    """

    def __init__(
        self,
        config: RunConfig,
        engines: Mapping[EngineId, RemoteEngine],
        seats: Mapping[str, Seat],
        surroundings: Surroundings,
    ) -> None:
        self._config = config
        self._holders = dict(engines)
        self._seats = seats
        self._surroundings = surroundings

    def holders(self) -> list[RemoteEngine]:
        """Who has the seats now, alive or not."""
        return list(self._holders.values())

    async def replace(self, seat: EngineId, name: EngineId) -> RemoteEngine:
        """Implement `rollpacker.protocols.backend.ReplaceEngine`."""
        await self._holders[seat].kill()
        place = self._seats[seat]
        engine = RemoteEngine(name, replace(place, log=place.log.with_name(f"{name}.log")))
        self._holders[seat] = engine
        self._surroundings.add_witness(name, engine.stacks)
        try:
            await engine.start(self._config)
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.backend.deadlines.stop_s):
                    await engine.kill()
            raise
        return engine
