"""LLM judge actors in their slots, and new ones in place of those that were lost.

Each one has the slot's reservation and GPUs, and a name and a log of its own. It starts after the process before it has
ended, however stuck that was: its memory is free, and nothing of it arrives any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import BackendContext
from rollpacker.runtime.ray.remote import JudgeProcess, Slot, make_judge_process
from rollpacker.runtime.rollout.starts import within_or_failed


class JudgeSlots:
    """The judge that holds each slot.

    Args:
        config: Of the run.
        slots: A slot has the name of its first judge.
        context: Gets a source of stacks for each slot: its newest process.
    """

    def __init__(self, config: RunConfig, slots: Mapping[EngineId, Slot], context: BackendContext) -> None:
        self._config = config
        self._slots = slots
        self._context = context
        self._holders = {slot: self._begin(slot, slot, place) for slot, place in slots.items()}

    @property
    def holders(self) -> Mapping[EngineId, JudgeProcess]:
        """By slot, alive or not."""
        return self._holders

    async def open(self, slots: Iterable[EngineId]) -> None:
        """Start the first judge of each of these slots."""
        await asyncio.gather(*(self._holders[slot].start(self._config) for slot in slots))

    async def sleep(self, slots: Iterable[EngineId]) -> None:
        """Free the GPU memory of these judges."""
        await asyncio.gather(*(self._holders[slot].sleep() for slot in slots))

    async def replace(self, slot: EngineId, name: EngineId) -> JudgeProcess:
        """Implement `rollpacker.runtime.ray.judges.ReplaceJudge`."""
        deadlines = self._config.backend.deadlines
        await self._holders[slot].kill()
        place = self._slots[slot]
        judge = self._begin(slot, name, replace(place, log=place.log.with_name(f"{name}.log")))
        self._holders[slot] = judge
        try:
            await within_or_failed(
                self._context.limit, deadlines.start_s, f"{name} to start", judge.start(self._config)
            )
        except BaseException:
            with suppress(TimeoutError):
                async with asyncio.timeout(deadlines.stop_s):
                    await judge.kill()
            raise
        return judge

    def _begin(self, slot: EngineId, name: EngineId, place: Slot) -> JudgeProcess:
        judge = make_judge_process(name, place)
        self._context.add_stack_source(slot, judge.stacks)
        return judge
