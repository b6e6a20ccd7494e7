"""Fresh engine actors in the slots of those that were lost, and of those that left for engines of another degree.

Each one has the slot's reservation and GPUs. In the place of a lost one it has a name and a log of its own. The process
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
from rollpacker.protocols.backend import BackendContext
from rollpacker.protocols.engine import Engine
from rollpacker.runtime.placing.fleets import config_of
from rollpacker.runtime.ray.rebuilt_engine import RebuiltEngine
from rollpacker.runtime.ray.remote import RemoteEngine, Slot


class SlotEngine(Engine, Protocol):
    """An engine whose process can be ended."""

    async def stacks(self) -> str: ...

    async def kill(self) -> None: ...


class EngineSlots:
    """Knows who has each engine's slot.

    Args:
        config: Of the run.
        slots: Every engine's, of every degree; a slot goes by the name of its first engine.
        degrees: Of tensor parallelism, by slot.
        surroundings: Where newcomers are made known.
    """

    def __init__(
        self,
        config: RunConfig,
        slots: Mapping[EngineId, Slot],
        degrees: Mapping[EngineId, int],
        surroundings: BackendContext,
    ) -> None:
        self._config = config
        self._slots = slots
        self._degrees = degrees
        self._surroundings = surroundings
        self._are_rebuilt = config.engine.switch == "restart" and len(set(degrees.values())) > 1
        self._holders: dict[EngineId, SlotEngine] = {}

    def holders(self) -> list[SlotEngine]:
        """Who has the slots now, alive or not."""
        return list(self._holders.values())

    def engines(self, degree: int) -> dict[EngineId, SlotEngine]:
        """Who has those of a degree."""
        return {slot: holder for slot, holder in self._holders.items() if self._degrees[slot] == degree}

    async def open(self) -> None:
        """Start the first engine of every slot; where sets share GPUs, one degree after the other.

        In the end those of the configured degree are awake; the others sleep, or have no process.
        """
        configured = self._config.engine.tensor_parallel
        sets = sorted(set(self._degrees.values()), key=lambda degree: degree == configured)
        if any(slot.gpus for slot in self._slots.values()):
            for degree in sets:
                await self._open_set(degree, is_first=degree == configured)
        else:
            await asyncio.gather(*(self._open_set(degree, is_first=degree == configured) for degree in sets))

    async def _open_set(self, degree: int, *, is_first: bool) -> None:
        here = [slot for slot in self._slots if self._degrees[slot] == degree]
        await asyncio.gather(*(self._slot(slot, slot, self._slots[slot], may_wait=not is_first) for slot in here))
        if not (is_first or self._are_rebuilt):
            await asyncio.gather(*(self._holders[slot].sleep() for slot in here))

    @property
    def num_sets_started(self) -> int:
        """How many sets start one after the other."""
        return 1 if self._are_rebuilt else len(set(self._degrees.values()))

    async def replace(self, slot: EngineId, name: EngineId) -> SlotEngine:
        """Implement `rollpacker.protocols.backend.ReplaceEngine`."""
        await self._holders[slot].kill()
        place = self._slots[slot]
        try:
            await self._slot(slot, name, replace(place, log=place.log.with_name(f"{name}.log")))
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.backend.deadlines.stop_s):
                    await self._holders[slot].kill()
            raise
        return self._holders[slot]

    async def end(self, slot: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        holder = self._holders[slot]
        assert isinstance(holder, RebuiltEngine)
        await holder.end()

    async def rebuild(self, slot: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        holder = self._holders[slot]
        assert isinstance(holder, RebuiltEngine)
        await holder.rebuild()

    @property
    def rebuilding(self) -> EngineSlots | None:
        """What changes of the degree go by; None where all engines are resident."""
        return self if self._are_rebuilt else None

    async def _slot(self, slot: EngineId, name: EngineId, place: Slot, *, may_wait: bool = False) -> None:
        """Give a slot to a new engine, and start it unless it may wait for its degree's turn."""
        config = config_of(self._config, self._degrees[slot])

        def begin() -> tuple[RemoteEngine, Awaitable[None]]:
            process = RemoteEngine(name, place)
            return process, process.start(config)

        if self._are_rebuilt:
            rebuilt = RebuiltEngine(name, begin, stop_s=self._config.backend.deadlines.stop_s)
            self._holders[slot] = rebuilt
            self._surroundings.add_stack_source(name, rebuilt.stacks)
            if not may_wait:
                await rebuilt.rebuild()
        else:
            process, started = begin()
            self._holders[slot] = process
            self._surroundings.add_stack_source(name, process.stacks)
            await started
