"""Engine actors in their slots, and new ones in place of those that were lost or that left for another degree.

Each one has the slot's reservation and GPUs; one that replaces a lost engine has a name and a log of its own. It starts
after the process before it has ended, however stuck that was: its memory is free, and nothing of it arrives any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import cast

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.placing.fleets import config_of
from rollpacker.runtime.ray.rebuilt_engine import RebuiltEngine, SlotEngine
from rollpacker.runtime.ray.remote import EngineProcess, Slot, make_engine_process


class EngineSlots:
    """The engine that holds each slot.

    Args:
        config: Of the run.
        slots: Of all engines, of every degree; a slot has the name of its first engine.
        degrees: Of tensor parallelism, by slot.
        context: Gets a source of stacks for each slot: its newest process.
    """

    def __init__(
        self,
        config: RunConfig,
        slots: Mapping[EngineId, Slot],
        degrees: Mapping[EngineId, int],
        context: BackendContext,
    ) -> None:
        self._config = config
        self._slots = slots
        self._degrees = degrees
        self._context = context
        self._are_rebuilt = config.engine.switch == "restart" and len(set(degrees.values())) > 1
        self._holders: dict[EngineId, SlotEngine] = {}
        self._rebuilt: dict[EngineId, RebuiltEngine] = {}
        """Those of the holders whose process ends when they leave."""

    def holders(self) -> list[SlotEngine]:
        """Engines that have the slots now, alive or not."""
        return list(self._holders.values())

    def engines(self, degree: int) -> dict[EngineId, SlotEngine]:
        """Those of a degree."""
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
        await self.kill(slot)
        place = self._slots[slot]
        try:
            await self._slot(slot, name, replace(place, log=place.log.with_name(f"{name}.log")))
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._config.backend.deadlines.stop_s):
                    await self.kill(slot)
            raise
        return self._holders[slot]

    async def kill(self, slot: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.EndEngine`."""
        await self._holders[slot].kill()

    async def end(self, slot: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        await self._rebuilt[slot].end()

    async def rebuild(self, slot: EngineId) -> None:
        """Implement `rollpacker.protocols.backend.Rebuild`."""
        await self._rebuilt[slot].rebuild()

    @property
    def rebuilding(self) -> EngineSlots | None:
        """Ends and starts processes when the degree changes; None where all engines are resident."""
        return self if self._are_rebuilt else None

    async def _slot(self, slot: EngineId, name: EngineId, place: Slot, *, may_wait: bool = False) -> None:
        """Give a slot to a new engine, and start it unless it may wait until its degree is used."""
        config = _beside_judges(config_of(self._config, self._degrees[slot]), place.memory_taken)

        def begin() -> tuple[EngineProcess, Awaitable[None]]:
            process = make_engine_process(name, place)
            return process, process.start(name, config)

        if self._are_rebuilt:
            rebuilt = RebuiltEngine(name, begin, stop_s=self._config.backend.deadlines.stop_s)
            self._rebuilt[slot] = rebuilt
            self._holders[slot] = cast("SlotEngine", rebuilt)
            started: Awaitable[None] | None = None if may_wait else rebuilt.rebuild()
        else:
            self._holders[slot], started = begin()
        self._context.add_stack_source(slot, self._holders[slot].stacks)
        if started is not None:
            await started


def _beside_judges(config: RunConfig, memory_taken: float) -> RunConfig:
    """Leave the share of GPU memory that belongs to judges."""
    if not memory_taken:
        return config
    vllm = config.engine.vllm.model_copy(update={"memory_share": config.engine.vllm.memory_share - memory_taken})
    return config.model_copy(update={"engine": config.engine.model_copy(update={"vllm": vllm})})
