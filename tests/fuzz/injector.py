"""Lets the faults of a plan happen to the wrapped workers of a run, at their events and times."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed
from rollpacker.sim.virtual_time import VirtualTimeLoop
from tests.fuzz.faults import Fault, FaultKind

if TYPE_CHECKING:
    from rollpacker.core.ids import EngineId
    from tests.fuzz.faulty_workers import FaultyEngine, FaultyTrainer

_ARMED = frozenset(
    {
        FaultKind.LOST_ABORT,
        FaultKind.LATE_FINISH,
        FaultKind.DUPLICATE_FINISH,
        FaultKind.HUNG_REWARD,
        FaultKind.DUPLICATE_VERDICT,
        FaultKind.TORN_WEIGHTS,
        FaultKind.FAILED_START,
        FaultKind.HUNG_TRAINER,
        FaultKind.FULL_DISK,
    }
)
"""Kinds that happen to the next call that they fit."""


class FaultInjector:
    """Lets each fault of a plan happen once, over all attempts of a run."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._waiting = list(faults)
        self._armed: list[Fault] = []
        self._num_events = 0
        self._num_suspensions = 0
        self.happened: list[Fault] = []
        """In order, over all attempts."""
        self._fleets: list[list[FaultyEngine]] = []
        self._engines: list[FaultyEngine] = []
        """Of each slot the last one."""
        self._num_restarts: Counter[EngineId] = Counter()
        """Tried in this attempt, by slot."""
        self._has_begun = False
        """The run's clock runs."""
        self._trainer: FaultyTrainer | None = None
        self._kill: Callable[[], None] = lambda: None
        self._give_notice: Callable[[float], None] = lambda _: None
        self._timers: list[asyncio.TimerHandle] = []

    def begin_attempt(self, kill: Callable[[], None], give_notice: Callable[[float], None]) -> None:
        """Forget the workers of the last attempt.

        Args:
            kill: How the driver dies.
            give_notice: How it is asked to leave within so many seconds.
        """
        self._engines, self._trainer, self._timers = [], None, []
        self._num_restarts.clear()
        self._has_begun = False
        self._kill, self._give_notice = kill, give_notice

    def watch(self, fleets: Sequence[Sequence[FaultyEngine]], trainer: FaultyTrainer) -> None:
        """Name the workers that faults may hit."""
        self._fleets = [list(fleet) for fleet in fleets]
        self._engines = [engine for fleet in fleets for engine in fleet]
        self._trainer = trainer
        self._let_due_faults_happen()

    def restart(self, slot: EngineId, old: FaultyEngine, name: EngineId) -> None:
        """An engine is to take another one's place.

        Raises:
            EngineFailed: That fault was armed.
        """
        self._num_restarts[slot] += 1
        old.crash()
        if self.take(FaultKind.FAILED_START):
            raise EngineFailed(f"{name} did not start.", "", "")

    def put_in_place(self, old: FaultyEngine, engine: FaultyEngine) -> None:
        """Let faults hit the engine that took another one's place."""
        for engines in (self._engines, *self._fleets):
            if old in engines:
                engines[engines.index(old)] = engine

    def is_short_of_workers(self, *, can_lend: bool, max_restarts: int) -> bool:
        """Whether no attempt could go on: the trainer crashed, or all engines that may be in use did, once too often.

        Args:
            can_lend: The trainer may have the GPUs of half of the engines, which then are no help to the others.
            max_restarts: Of each engine. What happens before the first step is no reason to restart one.
        """
        is_trainer_lost = self._trainer is not None and self._trainer.is_crashed
        given_up = [
            [
                engine.is_lost and (not self._has_begun or self._num_restarts[engine.slot] >= max_restarts)
                for engine in fleet
            ]
            for fleet in self._fleets
        ]
        return is_trainer_lost or any(map(any if can_lend else all, given_up))

    def start_clock(self) -> None:
        """Set a timer for every fault that waits for its time; the run's clock has just started."""
        self._has_begun = True
        loop = asyncio.get_running_loop()
        timed = [fault for fault in self._waiting if fault.at_event is None and fault.at_suspension is None]
        self._timers = [loop.call_at(max(fault.at_s, loop.time()), self._come, fault) for fault in timed]

    def stop_clock(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def count_event(self, *, is_suspension: bool) -> None:
        """Let happen what waits for this many events, or for this suspension of the engines."""
        self._num_events += 1
        self._let_due_faults_happen()
        if is_suspension:
            for fault in list(self._waiting):
                if fault.at_suspension == self._num_suspensions:
                    self._come(fault)
            self._num_suspensions += 1

    def _let_due_faults_happen(self) -> None:
        for fault in list(self._waiting):
            if fault.at_event is not None and fault.at_event <= self._num_events:
                self._come(fault)

    def take(self, kind: FaultKind, engine: FaultyEngine | None = None) -> Fault | None:
        """Give an armed fault that fits a call, which happens by this."""
        for fault in self._armed:
            if fault.kind is kind and (engine is None or self._target(fault) is engine):
                self._armed.remove(fault)
                self.happened.append(fault)
                return fault
        return None

    def _target(self, fault: Fault) -> FaultyEngine | None:
        return self._engines[fault.target % len(self._engines)] if self._engines else None

    def _come(self, fault: Fault) -> None:
        if fault not in self._waiting:
            return
        self._waiting.remove(fault)
        if fault.kind in _ARMED or not self._engines or self._trainer is None:
            self._armed.append(fault)
            return
        self.happened.append(fault)
        match fault.kind:
            case FaultKind.LOST_TRAINER:
                self._trainer.crash()
            case FaultKind.NODE_LOSS:
                self._lose_node(fault.target % len(self._engines), max(1, int(fault.amount)), self._trainer)
            case FaultKind.CLOCK_JUMP:
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualTimeLoop)
                loop.suspend(fault.amount)
            case FaultKind.DRIVER_KILL:
                self._kill()
            case FaultKind.PREEMPTION_NOTICE:
                self._give_notice(fault.amount)
            case _:
                self._engines[fault.target % len(self._engines)].suffer(fault)

    def _lose_node(self, first: int, num_engines: int, trainer: FaultyTrainer) -> None:
        for engine in self._engines[first : first + num_engines]:
            engine.crash()
        if first == 0:
            trainer.crash()
