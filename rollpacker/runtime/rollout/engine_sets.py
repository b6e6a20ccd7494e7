"""The sets of engines of each tensor-parallel degree, on the same GPUs: which works, which stands by, and the change.

    asleep ──stand by──> weights, no KV cache ──wake──> works ──sleep──> asleep
       └──────────────────────wake, then weights────────> works

One set works. With `system.escalate_tail` that of the largest degree stands by, where its GPUs are the rollout's: it
gets each policy with the others, so that in the midst of a round it only needs a KV cache.

Invariant: of the engines on a GPU at most one has a KV cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import partial
from typing import TypeVar

from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.starts import ask_each, within_or_failed

Answer = TypeVar("Answer")


class EngineSets:
    """Keeps the engines that are alive, by degree.

    Args:
        parts: The engines.
        slot_of: The slot that an engine has.
        lose: Takes one out of use.
    """

    def __init__(
        self,
        parts: FleetParts,
        slot_of: Callable[[EngineId], EngineId],
        lose: Callable[[EngineId, EngineFailed], None],
    ) -> None:
        self._fleets = parts.fleets
        self._rebuild = parts.rebuild
        self._end_engine = parts.end_engine
        self._limit = parts.limit
        self._deadlines = parts.deadlines
        self._slot_of = slot_of
        self._lose = lose
        self._alive = {degree: dict(fleet.engines) for degree, fleet in parts.fleets.items()}
        self.tensor_parallel = next(iter(parts.fleets))
        """The degree in use."""
        self._largest = max(parts.fleets) if parts.stands_by else None
        """Whose engines stand by; None where none do."""
        self._standing: dict[EngineId, None] = {}
        """Those that have the memory of their weights."""

    @property
    def present(self) -> dict[EngineId, Engine]:
        """Those of the set in use."""
        return self._alive[self.tensor_parallel]

    @property
    def standing(self) -> Mapping[EngineId, Engine]:
        """Those that stand by."""
        alive = self._alive[self._largest] if self._largest else {}
        return {engine_id: alive[engine_id] for engine_id in self._standing if engine_id in alive}

    @property
    def all(self) -> Mapping[EngineId, Engine]:
        """Those of every set."""
        return {engine_id: engine for engines in self._alive.values() for engine_id, engine in engines.items()}

    @property
    def slots(self) -> tuple[EngineId, ...]:
        """Of every set."""
        return tuple(slot for fleet in self._fleets.values() for slot in fleet.engines)

    @property
    def slots_in_use(self) -> tuple[EngineId, ...]:
        """Of the set in use."""
        return tuple(self._fleets[self.tensor_parallel].engines)

    def gpus_of(self, engine_id: EngineId) -> tuple[int, ...]:
        """The GPUs of an engine of any set; empty where they are unknown."""
        slot = self._slot_of(engine_id)
        return next((fleet.gpus[slot] for fleet in self._fleets.values() if slot in fleet.gpus), ())

    def on(self, gpus: Collection[int], engine_ids: Iterable[EngineId]) -> list[EngineId]:
        """Of some engines, those that have one of these GPUs."""
        return [engine_id for engine_id in engine_ids if not set(gpus).isdisjoint(self.gpus_of(engine_id))]

    def pop(self, engine_id: EngineId) -> None:
        """Take a lost one out."""
        for engines in self._alive.values():
            engines.pop(engine_id, None)

    # Calls

    async def each(self, what: str, engine_ids: Iterable[EngineId], order: Callable[[Engine], Awaitable[None]]) -> None:
        """Give the same order to several engines at once."""
        alive = self.all
        present = [(engine_id, alive[engine_id]) for engine_id in engine_ids if engine_id in alive]
        await asyncio.gather(*(self.guarded(engine_id, what, partial(order, engine)) for engine_id, engine in present))

    async def guarded(
        self, engine_id: EngineId, what: str, order: Callable[[], Awaitable[None]], deadline_s: float | None = None
    ) -> bool:
        """Give an order to an engine; False when it turns out to be lost, or does not answer in time."""
        deadline_s = deadline_s or self._deadlines.engine_call_s
        try:
            await within_or_failed(self._limit, deadline_s, f"{engine_id} {what}", order())
        except EngineFailed as error:
            self._lose(engine_id, error)
            return False
        return True

    async def ask(self, what: str, question: Callable[[Engine], Awaitable[Answer]]) -> dict[EngineId, Answer]:
        """Ask every engine in use; those that fail, or do not answer in time, are lost."""
        return await ask_each(self._limit, self.present, what, question, self._deadlines.engine_call_s, lose=self._lose)

    # Standing by

    async def stand_by(self) -> None:
        """Let the engines of the largest degree have the memory of their weights, unless they are in use."""
        if self._largest is None or self._largest == self.tensor_parallel:
            return
        asleep = [engine_id for engine_id in self._alive[self._largest] if engine_id not in self._standing]
        await self.each("to stand by", asleep, lambda engine: engine.stand_by())
        self._standing |= dict.fromkeys(asleep)

    async def leave(self, engine_ids: Iterable[EngineId]) -> None:
        """Let engines that stand by sleep: their GPUs are the trainer's."""
        leaving = [engine_id for engine_id in engine_ids if engine_id in self._standing]
        await self.each("to sleep", leaving, lambda engine: engine.sleep())
        for engine_id in leaving:
            del self._standing[engine_id]

    # Ends

    async def end(self, slots: Collection[EngineId]) -> None:
        """End the engines in use, and those that stand by, whatever they do, and what is left of lost ones."""
        closing = {
            slot: within_or_failed(self._limit, self._deadlines.stop_s, f"{engine_id} to end", engine.close())
            for engine_id, engine in {**self.present, **self.standing}.items()
            if (slot := self._slot_of(engine_id)) in slots
        }
        errors = await asyncio.gather(*closing.values(), return_exceptions=True)
        left = [slot for slot, error in zip(closing, errors, strict=True) if error is not None]
        await asyncio.gather(*map(self._end_process, (*left, *self._vacant(slots))), return_exceptions=True)

    async def end_lost(self, slots: Iterable[EngineId]) -> None:
        """End what is left of lost engines, one that hangs too: their GPUs are the trainer's.

        Raises:
            EngineFailed: Something of one is left.
        """
        await asyncio.gather(*map(self._end_process, self._vacant(slots)))

    def _vacant(self, slots: Iterable[EngineId]) -> list[EngineId]:
        held = {self._slot_of(engine_id) for engine_id in self.all}
        return [slot for slot in slots if slot not in held]

    async def _end_process(self, slot: EngineId) -> None:
        if self._end_engine is not None:
            what = f"the process in the slot of {slot} to end"
            await within_or_failed(self._limit, self._deadlines.stop_s, what, self._end_engine(slot))

    # The change

    async def leave_for_others(self, asleep: Collection[EngineId]) -> None:
        """Put the engines in use to sleep, or end them; some sleep already."""
        if self._rebuild:
            await self._move(self._rebuild.end, 2 * self._deadlines.stop_s)
        else:
            awake = [engine_id for engine_id in self.present if engine_id not in asleep]
            await self.each("to sleep", awake, lambda engine: engine.sleep())

    async def take_over(self, asleep: Collection[EngineId] = ()) -> list[EngineId]:
        """Wake or start the engines of the set in use, some of which stay asleep; gives those that hold weights."""
        if self._rebuild:
            await self._move(self._rebuild.rebuild, self._deadlines.start_s)
            return []
        to_wake = [engine_id for engine_id in self.present if engine_id not in asleep]
        await self.each("to wake", to_wake, lambda engine: engine.wake())
        standing, self._standing = self._standing, {}
        return [engine_id for engine_id in to_wake if engine_id in standing]

    async def _move(self, move: Callable[[EngineId], Awaitable[None]], deadline_s: float) -> None:
        """End or start every engine of the degree in use; one for which that fails is lost."""
        what = "to make place, or to take it"
        moves = [
            self.guarded(engine_id, what, partial(move, self._slot_of(engine_id)), deadline_s)
            for engine_id in self.present
        ]
        await asyncio.gather(*moves)

    def longest_switch_s(self, tensor_parallel: int) -> float:
        """How long a change to a degree may take; 0 without one, or if no process starts."""
        is_rebuilding = self._rebuild is not None and tensor_parallel != self.tensor_parallel
        return 2 * self._deadlines.stop_s + self._deadlines.start_s if is_rebuilding else 0.0
