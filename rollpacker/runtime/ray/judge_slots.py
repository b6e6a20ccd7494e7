"""Judge actors in their slots, and fresh ones in the slots of those that were lost.

Each one has the slot's reservation and GPUs, and a name and a log of its own. The process before it has ended by then,
however stuck it was, so that its memory is free and nothing of it is heard any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.ray.remote import RemoteJudge, Slot
from rollpacker.runtime.rollout.restarts import within_or_failed


class JudgeSlots:
    """Knows who has each judge's slot.

    Args:
        config: Of the run.
        slots: A slot goes by the name of its first judge.
        surroundings: Where judges are made known.
    """

    def __init__(self, config: RunConfig, slots: Mapping[EngineId, Slot], surroundings: BackendContext) -> None:
        self._config = config
        self._slots = slots
        self._surroundings = surroundings
        self._holders = {slot: self._begin(slot, place) for slot, place in slots.items()}

    @property
    def holders(self) -> Mapping[EngineId, RemoteJudge]:
        """Who has each slot now, alive or not."""
        return self._holders

    async def open(self, slots: Iterable[EngineId]) -> None:
        """Start the first judge of each of these slots."""
        await asyncio.gather(*(self._holders[slot].start(self._config) for slot in slots))

    async def sleep(self, slots: Iterable[EngineId]) -> None:
        """Let judges leave their GPUs."""
        await asyncio.gather(*(self._holders[slot].sleep() for slot in slots))

    async def replace(self, slot: EngineId, name: EngineId) -> RemoteJudge:
        """Implement `rollpacker.runtime.ray.judges.ReplaceJudge`."""
        deadlines = self._config.backend.deadlines
        await self._holders[slot].kill()
        place = self._slots[slot]
        judge = self._begin(name, replace(place, log=place.log.with_name(f"{name}.log")))
        self._holders[slot] = judge
        try:
            await within_or_failed(deadlines.start_s, f"{name} to start", judge.start(self._config))
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadlines.stop_s):
                    await judge.kill()
            raise
        return judge

    def _begin(self, name: EngineId, place: Slot) -> RemoteJudge:
        judge = RemoteJudge(name, place)
        self._surroundings.add_stack_source(name, judge.stacks)
        return judge
