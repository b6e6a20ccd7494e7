"""Fresh actors in the places of those that were lost, brought beside the run's other work: engines and judges.

    lost ──a restart is left──> vacant ──its GPUs are theirs──> pause ──> brought ──> ready
      └─ none is left: empty      ^                                        └─ fails ─┤
                                  └──── that restart is used up, the next pause is longer

A place is a slot and goes by the name of its first actor. Each actor that takes it has a name of its own, so that no
late fact of a dead one passes for a fact of its successor, and no log is written over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TypeVar

from rollpacker.core.errors import EngineFailed, InternalError, RollpackerError
from rollpacker.core.ids import EngineId, successor_of

Answer = TypeVar("Answer")

LONGEST_PAUSE_S = 60.0
"""Pauses double up to here: long enough for a node that is short of memory for a while, short against the start of a
large model."""

Bring = Callable[[EngineId, EngineId], Awaitable[None]]
"""Given the slot and the name of who is to take it: starts an actor there, within a deadline of its own."""


@dataclass(slots=True)
class _Slot:
    """One place for an actor."""

    name: EngineId
    num_begun: int = 0
    """Restarts; each one's number is in its actor's name."""
    num_called_off: int = 0
    """Of them those that did not fail, and do not count: their GPUs were wanted."""
    is_vacant: bool = False
    """An actor is to take it."""
    filling: asyncio.Task[None] | None = None

    @property
    def num_restarts(self) -> int:
        """That count."""
        return self.num_begun - self.num_called_off


class Restarts:
    """Keeps slots filled.

    Args:
        slots: By the names of their first actors.
        bring: Starts a fresh actor in a slot; None where that cannot be done.
        max_restarts: Of one slot.
        first_pause_s: Before the first restart; it doubles with each one.
        setting: The key of `max_restarts`, for a person.
        note: Tells a person what happens.
        on_ready: Told of an actor that was brought.
        on_empty: Told of a slot that nobody will take: the actor that was tried last, and why it failed.
        on_error: Told of an error that is no actor's failure.
        fillable: Seats that may be filled before `fill_only` says which.
    """

    def __init__(
        self,
        *,
        slots: Iterable[EngineId],
        bring: Bring | None,
        max_restarts: int,
        first_pause_s: float,
        setting: str,
        note: Callable[[str], None],
        on_ready: Callable[[EngineId], None],
        on_empty: Callable[[EngineId, RollpackerError], object],
        on_error: Callable[[Exception], None],
        fillable: Iterable[EngineId] = (),
    ) -> None:
        self._slots = {name: _Slot(name) for name in slots}
        self._seat_of = dict(self._slots)
        """By every actor that has or had it."""
        self._bring = bring
        self._max_restarts = max_restarts
        self._first_pause_s = first_pause_s
        self._setting = setting
        self._note = note
        self._on_ready = on_ready
        self._on_empty = on_empty
        self._on_error = on_error
        self._fillable = frozenset(fillable)
        """Seats whose GPUs are theirs now."""

    @property
    def slots(self) -> Collection[EngineId]:
        """All of them."""
        return self._slots.keys()

    def slot_of(self, actor: EngineId) -> EngineId:
        """The slot that an actor has, or had."""
        return self._seat_of[actor].name

    def are_expected(self, slots: Collection[EngineId]) -> bool:
        """Whether an actor is to take one of these slots, be it only when its GPUs are free for it again."""
        return any(self._slots[name].is_vacant for name in slots)

    @property
    def under_way(self) -> list[EngineId]:
        """The actors that are on their way now."""
        return [successor_of(slot.name, slot.num_begun) for slot in self._slots.values() if slot.filling]

    def vacate(self, actor: EngineId) -> str:
        """Have the slot of an actor filled that was lost, and say what follows."""
        slot = self._seat_of[actor]
        slot.is_vacant = self._may_restart(slot)
        what_follows = self._announce(slot)
        self._fill(slot)
        return what_follows

    async def fill_only(self, slots: Iterable[EngineId]) -> None:
        """Fill these slots from now on and no others, whose GPUs are someone else's: what was under way there ends."""
        self._fillable = frozenset(slots)
        called_off: list[asyncio.Task[None]] = []
        for slot in self._slots.values():
            if slot.name not in self._fillable and slot.filling is not None:
                slot.filling.cancel()
                called_off.append(slot.filling)
                slot.filling = None
                slot.num_called_off += 1
            self._fill(slot)
        await asyncio.gather(*called_off, return_exceptions=True)

    async def stop(self) -> None:
        """End what is under way."""
        await self.fill_only(())

    def _may_restart(self, slot: _Slot) -> bool:
        return self._bring is not None and slot.num_restarts < self._max_restarts

    def _announce(self, slot: _Slot) -> str:
        """Say who takes a slot that has just become vacant."""
        if self._may_restart(slot):
            successor = successor_of(slot.name, slot.num_begun + 1)
            return f"{successor} is to take its place: restart {slot.num_restarts + 1} of {self._max_restarts}."
        return f"It is not replaced: {self._setting}={self._max_restarts}." if self._bring else "It cannot be replaced."

    def _fill(self, slot: _Slot) -> None:
        if slot.is_vacant and slot.filling is None and slot.name in self._fillable:
            slot.filling = asyncio.create_task(self._refill(slot), name=f"replacement of {slot.name}")

    async def _refill(self, slot: _Slot) -> None:
        """Restart a slot's actor until one is ready, or no restart is left."""
        assert self._bring is not None
        while True:
            pause_s = min(self._first_pause_s * 2**slot.num_restarts, LONGEST_PAUSE_S)
            slot.num_begun += 1
            name = successor_of(slot.name, slot.num_begun)
            self._seat_of[name] = slot
            try:
                await asyncio.sleep(pause_s)
                await self._bring(slot.name, name)
            except InternalError as error:
                self._on_error(error)
                return
            except RollpackerError as error:
                self._note(f"{error.problem} {self._announce(slot)}")
                if not self._may_restart(slot):
                    slot.is_vacant, slot.filling = False, None
                    self._on_empty(name, error)
                    return
            except Exception as error:  # noqa: BLE001  (a task's boundary: the driver raises it again)
                self._on_error(error)
                return
            else:
                slot.is_vacant, slot.filling = False, None
                self._on_ready(name)
                return


async def within_or_failed(deadline_s: float, what: str, answer: Awaitable[Answer]) -> Answer:
    """Await an answer for at most so long; raises `EngineFailed`, because one slow actor is no reason to end a run."""
    try:
        async with asyncio.timeout(deadline_s) as scope:
            return await answer
    except TimeoutError:
        if not scope.expired():
            raise
    raise EngineFailed(f"Waited {deadline_s:g} s for {what}, in vain.", "Deadlines are set under backend.deadlines.")
