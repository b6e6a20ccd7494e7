"""Fresh engine actors in the seats of those that were lost, and of those that left for engines of another degree.

Each one has the seat's reservation and GPUs. In the place of a lost one it has a name and a log of its own. The process
before it has ended by then, however stuck it was, so that its memory is free and nothing of it is heard any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Surroundings
from rollpacker.protocols.engine import Engine
from rollpacker.runtime.placing.fleets import config_of
from rollpacker.runtime.ray.rebuilt_engine import RebuiltEngine
from rollpacker.runtime.ray.remote import RemoteEngine, Seat


class SeatedEngine(Engine, Protocol):
    """An engine whose process can be ended."""

    async def stacks(self) -> str: ...

    async def kill(self) -> None: ...


class EngineSeats:
    """Knows who has each engine's seat.

    Args:
        config: Of the run.
        seats: Every engine's, of every degree; a seat goes by the name of its first engine.
        degrees: Of tensor parallelism, by seat.
        surroundings: Where newcomers are made known.
    """

    def __init__(
        self,
        config: RunConfig,
        seats: Mapping[EngineId, Seat],
        degrees: Mapping[EngineId, int],
        surroundings: Surroundings,
    ) -> None:
        self._config = config
        self._seats = seats
        self._degrees = degrees
        self._surroundings = surroundings
        self._are_rebuilt = config.engine.sets == "rebuilt" and len(set(degrees.values())) > 1
        self._holders: dict[EngineId, SeatedEngine] = {}

    def holders(self) -> list[SeatedEngine]:
        """Who has the seats now, alive or not."""
        return list(self._holders.values())

    def engines(self, degree: int) -> dict[EngineId, SeatedEngine]:
        """Who has those of a degree."""
        return {seat: holder for seat, holder in self._holders.items() if self._degrees[seat] == degree}

    async def open(self) -> None:
        """Start the first engine of every seat; where sets share GPUs, one degree after the other.

        In the end those of the configured degree are awake; the others sleep, or have no process.
        """
        configured = self._config.engine.tensor_parallel
        sets = sorted(set(self._degrees.values()), key=lambda degree: degree == configured)
        if any(seat.gpus for seat in self._seats.values()):
            for degree in sets:
                await self._open_set(degree, is_first=degree == configured)
        else:
            await asyncio.gather(*(self._open_set(degree, is_first=degree == configured) for degree in sets))

    async def _open_set(self, degree: int, *, is_first: bool) -> None:
        here = [seat for seat in self._seats if self._degrees[seat] == degree]
        await asyncio.gather(*(self._seat(seat, seat, self._seats[seat], may_wait=not is_first) for seat in here))
        if not (is_first or self._are_rebuilt):
            await asyncio.gather(*(self._holders[seat].sleep() for seat in here))

    @property
    def num_sets_started(self) -> int:
        """How many sets start one after the other."""
        return 1 if self._are_rebuilt else len(set(self._degrees.values()))

    async def replace(self, seat: EngineId, name: EngineId) -> SeatedEngine:
        """Implement `rollpacker.protocols.backend.ReplaceEngine`."""
        await self._holders[seat].kill()
        place = self._seats[seat]
        try:
            await self._seat(seat, name, replace(place, log=place.log.with_name(f"{name}.log")))
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.backend.deadlines.stop_s):
                    await self._holders[seat].kill()
            raise
        return self._holders[seat]

    async def end(self, seat: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        holder = self._holders[seat]
        assert isinstance(holder, RebuiltEngine)
        await holder.end()

    async def rebuild(self, seat: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        holder = self._holders[seat]
        assert isinstance(holder, RebuiltEngine)
        await holder.rebuild()

    @property
    def rebuilding(self) -> EngineSeats | None:
        """What changes of the degree go by; None where all engines are resident."""
        return self if self._are_rebuilt else None

    async def _seat(self, seat: EngineId, name: EngineId, place: Seat, *, may_wait: bool = False) -> None:
        """Give a seat to a new engine, and start it unless it may wait for its degree's turn."""
        config = config_of(self._config, self._degrees[seat])

        def begin() -> tuple[RemoteEngine, Awaitable[None]]:
            process = RemoteEngine(name, place)
            return process, process.start(config)

        if self._are_rebuilt:
            rebuilt = RebuiltEngine(name, begin, stop_s=self._config.backend.deadlines.stop_s)
            self._holders[seat] = rebuilt
            self._surroundings.add_witness(name, rebuilt.stacks)
            if not may_wait:
                await rebuilt.rebuild()
        else:
            process, started = begin()
            self._holders[seat] = process
            self._surroundings.add_witness(name, process.stacks)
            await started
