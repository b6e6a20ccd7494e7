"""Judge actors in their seats, and fresh ones in the seats of those that were lost.

Each one has the seat's reservation and GPUs, and a name and a log of its own. The process before it has ended by then,
however stuck it was, so that its memory is free and nothing of it is heard any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Surroundings
from rollpacker.runtime.ray.remote import RemoteJudge, Seat
from rollpacker.runtime.rollout.restarts import within_or_failed


class JudgeSeats:
    """Knows who has each judge's seat.

    Args:
        config: Of the run.
        seats: A seat goes by the name of its first judge.
        surroundings: Where judges are made known.
    """

    def __init__(self, config: RunConfig, seats: Mapping[EngineId, Seat], surroundings: Surroundings) -> None:
        self._config = config
        self._seats = seats
        self._surroundings = surroundings
        self._holders = {seat: self._begin(seat, place) for seat, place in seats.items()}

    @property
    def holders(self) -> Mapping[EngineId, RemoteJudge]:
        """Who has each seat now, alive or not."""
        return self._holders

    async def open(self, seats: Iterable[EngineId]) -> None:
        """Start the first judge of each of these seats."""
        await asyncio.gather(*(self._holders[seat].start(self._config) for seat in seats))

    async def sleep(self, seats: Iterable[EngineId]) -> None:
        """Let judges leave their GPUs."""
        await asyncio.gather(*(self._holders[seat].sleep() for seat in seats))

    async def replace(self, seat: EngineId, name: EngineId) -> RemoteJudge:
        """Implement `rollpacker.runtime.ray.judges.ReplaceJudge`."""
        deadlines = self._config.backend.deadlines
        await self._holders[seat].kill()
        place = self._seats[seat]
        judge = self._begin(name, replace(place, log=place.log.with_name(f"{name}.log")))
        self._holders[seat] = judge
        try:
            await within_or_failed(deadlines.start_s, f"{name} to start", judge.start(self._config))
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadlines.stop_s):
                    await judge.kill()
            raise
        return judge

    def _begin(self, name: EngineId, place: Seat) -> RemoteJudge:
        judge = RemoteJudge(name, place)
        self._surroundings.add_witness(name, judge.stacks)
        return judge
