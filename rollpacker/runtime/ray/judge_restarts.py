"""Judges in the slots of those that were lost: `rollpacker.core.restarts` decides, timers and starts are the loop's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import assert_never

from rollpacker.core.commands import CancelStart, SetTimer, StartEngine
from rollpacker.core.errors import RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.core.restarts import Order, Restarts
from rollpacker.core.settings import RestartSettings
from rollpacker.runtime.rollout.starts import StartActor, Starts, what_follows
from rollpacker.runtime.rollout.timers import Timers
from rollpacker.runtime.waiting.clock import RunClock


class JudgeRestarts:
    """Keeps the slots of judges filled.

    Args:
        slots: By the names of their first judges.
        start: Starts a fresh judge in a slot; None where that cannot be done.
        settings: How often, and after which pause.
        withheld: Slots whose GPUs are the trainer's at first.
        note: Tells a person what happens.
        on_ready: Told of a judge that has started.
        on_failed: Told of a judge that has not, and why.
        on_error: Told of an error that is no judge's failure.
    """

    def __init__(
        self,
        slots: Iterable[EngineId],
        *,
        start: StartActor | None,
        settings: RestartSettings,
        withheld: Collection[EngineId],
        note: Callable[[str], None],
        on_ready: Callable[[EngineId], None],
        on_failed: Callable[[EngineId, RollpackerError], object],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._can_start = start is not None
        self._settings = settings
        self._note = note
        self._on_ready = on_ready
        self._on_failed = on_failed
        self._machine = Restarts(settings)
        self._machine.begin(slots, are_replaceable=self._can_start)
        self._clock = RunClock()
        self._timers = Timers(self._clock, lambda timer: self._carry_out(self._machine.fire(timer)))
        self._starts = Starts(start, on_started=self._join, on_failed=self._try_again, on_error=on_error)
        self._carry_out(self._machine.use(self._machine.slots, withheld, self._clock.now()))

    def slot_of(self, judge: EngineId) -> EngineId:
        """The slot that a judge has, or had."""
        return self._machine.slot_of(judge)

    @property
    def are_expected(self) -> bool:
        """Whether a judge is to take some slot, be it only when its GPUs are free for it again."""
        return self._machine.are_expected(self._machine.slots)

    def vacate(self, judge: EngineId) -> str:
        """Have the slot of a judge filled that was lost, and say what follows."""
        self._carry_out(self._machine.vacate(judge, self._clock.now()))
        return self._what_follows(judge)

    async def withhold(self, slots: Collection[EngineId]) -> None:
        """Fill all slots from now on but these, whose GPUs are the trainer's: what was under way there ends."""
        self._carry_out(self._machine.use(self._machine.slots, slots, self._clock.now()))
        await self._starts.settle()

    async def stop(self) -> None:
        """End what is under way."""
        self._timers.stop()
        await self._starts.stop()

    def _carry_out(self, orders: Sequence[Order]) -> None:
        for order in orders:
            match order:
                case SetTimer():
                    self._timers.set(order.timer, order.at_s)
                case StartEngine():
                    self._starts.begin(order.slot, order.engine)
                case CancelStart():
                    self._starts.cancel(order.engine)
                case _:
                    assert_never(order)

    def _join(self, judge: EngineId) -> None:
        self._machine.note_started(judge)
        self._machine.join(judge)
        self._on_ready(judge)

    def _try_again(self, judge: EngineId, error: RollpackerError) -> None:
        self._carry_out(self._machine.note_failed(judge, self._clock.now()))
        self._note(f"{error.problem} {self._what_follows(judge)}")
        self._on_failed(judge, error)

    def _what_follows(self, judge: EngineId) -> str:
        most = self._settings.max_restarts if self._can_start else None
        return what_follows(self._machine, judge, setting="reward.judge.max_restarts", max_restarts=most)
