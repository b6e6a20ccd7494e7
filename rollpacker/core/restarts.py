"""Which lost actors are replaced, how often and after which pause: engines of the run, and judges.

    held ──vacate──> vacant ──its GPUs are free──> pausing ──TimerFired──> starting ──started──> ready ──join──> held
      │                 ^                             └─── fail, or its GPUs are wanted ───┤
      └──vacate─────────┴─────────────────── no restart is left ───────────────────────> empty

A place for an actor is a slot and goes by the name of its first actor. Each actor that takes it has a name of its own
(`successor_of`), so that no late fact of a dead one passes for a fact of its successor, and no log is written over.

Pauses double with each restart of a slot. A start that is cancelled because the trainer takes the GPUs does not count
as one.

Invariant: a slot has at most one successor under way, and never more restarts than are allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Self, assert_never

from rollpacker.core.commands import CancelStart, SetTimer, StartEngine
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    EngineStarted,
    EngineStartFailed,
    SlotsChanged,
    SlotsOpened,
    SlotVacated,
    TimerFired,
)
from rollpacker.core.ids import EngineId, successor_of
from rollpacker.core.settings import RestartSettings

LONGEST_PAUSE_S = 60.0
"""Pauses double up to here: long enough for a node that is short of memory for a while, short against the start of a
large model."""
_MOST_DOUBLINGS = 32
"""A number of restarts has no bound, and no pause is shorter than it after so many."""


class Stage(StrEnum):
    """Where a slot stands."""

    HELD = "held"
    VACANT = "vacant"
    """An actor is to take it when its GPUs are free."""
    PAUSING = "pausing"
    STARTING = "starting"
    READY = "ready"
    """Its actor has started, and may not have joined yet."""
    EMPTY = "empty"
    """No actor will take it."""


_RESTARTING = (Stage.PAUSING, Stage.STARTING)
_EXPECTED = (Stage.VACANT, *_RESTARTING, Stage.READY)


@dataclass(slots=True)
class _Slot:
    """One place for an actor."""

    name: EngineId
    stage: Stage = Stage.HELD
    num_begun: int = 0
    """Restarts; each one's number is in its actor's name."""
    num_cancelled: int = 0
    """Of them those that did not fail, and do not count: their GPUs were wanted."""

    @property
    def num_restarts(self) -> int:
        """Those that count."""
        return self.num_begun - self.num_cancelled

    @property
    def actor(self) -> EngineId:
        """The last one that took it, or is to take it."""
        return successor_of(self.name, self.num_begun) if self.num_begun else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class NextRestart:
    """What follows the loss of an actor."""

    successor: EngineId
    number: int
    """Of the restarts that count, from 1."""


Order = SetTimer | StartEngine | CancelStart
RestartEvent = SlotsOpened | SlotsChanged | SlotVacated | EngineStarted | EngineStartFailed | TimerFired


class Restarts:
    """Keeps slots filled."""

    def __init__(self, settings: RestartSettings) -> None:
        self._settings = settings
        self._max_restarts = settings.max_restarts
        """Of one slot; 0 where actors cannot be replaced."""
        self._slots: dict[EngineId, _Slot] = {}
        self._slot_of: dict[EngineId, _Slot] = {}
        """By every actor that has or had it."""
        self._in_use: tuple[EngineId, ...] = ()
        """Slots of the degree in use."""
        self._free: frozenset[EngineId] = frozenset()
        """Slots in use whose GPUs are not the trainer's."""

    def handle(self, event: RestartEvent, now: float) -> list[Order]:
        """Take in what happened to a slot of an engine.

        Raises:
            ImpossibleEvent: A slot or an engine is unknown; nothing was changed.
        """
        match event:
            case SlotsOpened():
                self.begin(event.slots, are_replaceable=event.are_replaceable)
            case SlotsChanged():
                return self.use(event.in_use, event.withheld, now)
            case SlotVacated():
                return self.vacate(event.engine, now)
            case EngineStarted():
                self.note_started(event.engine)
            case EngineStartFailed():
                return self.note_failed(event.engine, now)
            case TimerFired():
                return self.fire(event.timer)
            case _:
                assert_never(event)
        return []

    # Slots

    def begin(self, slots: Iterable[EngineId], *, are_replaceable: bool = True) -> None:
        """Know these slots, each with its first actor, and forget those of an earlier attempt."""
        self._max_restarts = self._settings.max_restarts if are_replaceable else 0
        self._slots = {name: _Slot(name) for name in slots}
        self._slot_of = dict(self._slots)
        self._in_use, self._free = (), frozenset()

    def use(self, in_use: Iterable[EngineId], withheld: Collection[EngineId], now: float) -> list[Order]:
        """Fill these slots from now on, without the withheld ones, whose GPUs are the trainer's.

        Raises:
            ImpossibleEvent: A slot is unknown; nothing was changed.
        """
        slots = tuple(in_use)
        if unknown := [slot for slot in slots if slot not in self._slots]:
            raise ImpossibleEvent(f"The slots {unknown} are in use.", f"Known are {list(self._slots)}.")
        self._in_use, self._free = slots, frozenset(slots) - frozenset(withheld)
        orders: list[Order] = []
        for slot in self._slots.values():
            if slot.name not in self._free and slot.stage in _RESTARTING:
                if slot.stage is Stage.STARTING:
                    orders.append(CancelStart(engine=slot.actor))
                slot.stage = Stage.VACANT
                slot.num_cancelled += 1
            orders += self._fill(slot, now)
        return orders

    # The life of an actor

    def vacate(self, actor: EngineId, now: float) -> list[Order]:
        """Have the slot of an actor filled that was lost; nothing if it was known."""
        slot = self._find(actor)
        if actor != slot.actor or slot.stage not in (Stage.HELD, Stage.READY):
            return []
        slot.stage = Stage.VACANT if self._may_restart(slot) else Stage.EMPTY
        return self._fill(slot, now)

    def join(self, actor: EngineId) -> None:
        """Note that an actor is at work; one that no slot is known of is the business of others."""
        slot = self._slot_of.get(actor)
        if slot is not None and slot.actor == actor and slot.stage is Stage.READY:
            slot.stage = Stage.HELD

    def fire(self, timer: str) -> list[Order]:
        """Start the actor whose pause is over; a pause that was cancelled is none."""
        for slot in self._slots.values():
            if slot.stage is Stage.PAUSING and timer == _timer_of(slot):
                slot.stage = Stage.STARTING
                return [StartEngine(slot=slot.name, engine=slot.actor)]
        return []

    def note_started(self, actor: EngineId) -> None:
        """Note that an actor has started; one that was cancelled is late."""
        slot = self._find(actor)
        if slot.actor == actor and slot.stage is Stage.STARTING:
            slot.stage = Stage.READY

    def note_failed(self, actor: EngineId, now: float) -> list[Order]:
        """Try again, if a restart is left; the failure of one that was cancelled is late."""
        slot = self._find(actor)
        if slot.actor != actor or slot.stage is not Stage.STARTING:
            return []
        slot.stage = Stage.VACANT if self._may_restart(slot) else Stage.EMPTY
        return self._fill(slot, now)

    def _fill(self, slot: _Slot, now: float) -> list[Order]:
        if slot.stage is not Stage.VACANT or slot.name not in self._free:
            return []
        pause_s = min(self._settings.first_pause_s * 2 ** min(slot.num_restarts, _MOST_DOUBLINGS), LONGEST_PAUSE_S)
        slot.num_begun += 1
        slot.stage = Stage.PAUSING
        self._slot_of[slot.actor] = slot
        return [SetTimer(timer=_timer_of(slot), at_s=now + pause_s)]

    def _may_restart(self, slot: _Slot) -> bool:
        return slot.num_restarts < self._max_restarts

    def _find(self, actor: EngineId) -> _Slot:
        if actor not in self._slot_of:
            raise ImpossibleEvent(f"{actor!r} has no slot.", f"Slots are {list(self._slots)}.")
        return self._slot_of[actor]

    # Views

    @property
    def slots(self) -> Collection[EngineId]:
        """All of them; none before `begin`."""
        return self._slots.keys()

    @property
    def timers(self) -> list[str]:
        """Of the pauses."""
        return [_timer_of(slot) for slot in self._slots.values() if slot.stage is Stage.PAUSING]

    def slot_of(self, actor: EngineId) -> EngineId:
        """The slot that an actor has, or had."""
        return self._find(actor).name

    def knows(self, actor: EngineId) -> bool:
        """Tell whether an actor has, or had, a slot."""
        return actor in self._slot_of

    def next_restart(self, actor: EngineId) -> NextRestart | None:
        """What follows the loss of an actor, as it stands after it; None if it is not replaced."""
        slot = self._find(actor)
        if slot.stage is Stage.EMPTY:
            return None
        is_begun = slot.stage in _RESTARTING
        number = slot.num_begun if is_begun else slot.num_begun + 1
        return NextRestart(successor=successor_of(slot.name, number), number=slot.num_restarts + (0 if is_begun else 1))

    def are_expected(self, slots: Collection[EngineId]) -> bool:
        """Tell whether an actor is to take one of these slots, be it only when its GPUs are free for it again."""
        return any(self._slots[name].stage in _EXPECTED for name in slots)

    @property
    def is_hopeless(self) -> bool:
        """True when no slot in use is held, or will be."""
        return bool(self._in_use) and all(self._slots[name].stage is Stage.EMPTY for name in self._in_use)

    @property
    def under_way(self) -> list[EngineId]:
        """The actors that start, or have and are about to join; those that wait for the trainer's GPUs do not count."""
        return [slot.actor for slot in self._slots.values() if slot.stage in (*_RESTARTING, Stage.READY)]

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: A slot has more restarts than are allowed, or starts where it may not.
        """
        for slot in self._slots.values():
            if not 0 <= slot.num_restarts <= self._max_restarts:
                raise InvariantViolated(f"{slot} has {slot.num_restarts} restarts.")
            if slot.stage in _RESTARTING and slot.name not in self._free:
                raise InvariantViolated(f"{slot} is filled, and its GPUs are not free.")
            if slot.stage is Stage.VACANT and slot.name in self._free:
                raise InvariantViolated(f"{slot} is not filled, and its GPUs are free.")
            if self._slot_of.get(slot.actor) is not slot:
                raise InvariantViolated(f"{slot.actor} is not known to have {slot}.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "max_restarts": self._max_restarts,
            "slots": [asdict(slot) | {"stage": slot.stage.value} for slot in self._slots.values()],
            "in_use": list(self._in_use),
            "free": sorted(self._free),
        }

    @classmethod
    def restore(cls, settings: RestartSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._max_restarts = snapshot["max_restarts"]
        for plain in snapshot["slots"]:
            slot = _Slot(**{**plain, "name": EngineId(plain["name"]), "stage": Stage(plain["stage"])})
            machine._slots[slot.name] = slot
            machine._slot_of[slot.name] = slot
            for number in range(1, slot.num_begun + 1):
                machine._slot_of[successor_of(slot.name, number)] = slot
        machine._in_use = tuple(map(EngineId, snapshot["in_use"]))
        machine._free = frozenset(map(EngineId, snapshot["free"]))
        return machine


def _timer_of(slot: _Slot) -> str:
    return f"start {slot.actor}"
