"""Examples of restarts: two engines, of which each may be started again twice, after 1 s and then 2 s."""

from __future__ import annotations

import json

import pytest

from rollpacker.core.commands import CancelStart, Command, FailWithoutEngines, Launch, SetTimer, StartEngine
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineStarted,
    EngineStartFailed,
    Event,
    SlotsChanged,
    SlotsOpened,
    SlotVacated,
    TimerFired,
)
from rollpacker.core.ids import EngineId
from rollpacker.core.restarts import LONGEST_PAUSE_S, Restarts
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import RestartSettings
from tests.core.player import Player, make_settings

E0, E1 = EngineId("engine-0"), EngineId("engine-1")
E0_R1, E0_R2 = EngineId("engine-0-r1"), EngineId("engine-0-r2")
SETTINGS = make_settings(restarts=RestartSettings(max_restarts=2, first_pause_s=1.0))


class RestartPlayer(Player):
    """Engines in slots, and a clock."""

    def __init__(self, *, are_replaceable: bool = True) -> None:
        super().__init__(SETTINGS, num_engines=0)
        self.now = 10.0
        self.tell(SlotsOpened(slots=(E0, E1), are_replaceable=are_replaceable))
        self.tell(EngineJoined(engine=E0, policy_version=self.version))
        self.tell(EngineJoined(engine=E1, policy_version=self.version))
        assert self.tell(SlotsChanged(in_use=(E0, E1))) == ()

    def tell(self, event: Event) -> tuple[Command, ...]:
        commands = super().tell(event)
        snapshot = json.loads(json.dumps(self.scheduler.snapshot()))
        self.scheduler = Scheduler.restore(SETTINGS, snapshot)
        assert self.scheduler.snapshot() == snapshot
        return commands

    def lose(self, engine: EngineId) -> tuple[Command, ...]:
        return self.tell(SlotVacated(engine=engine)) + self.tell(EngineLost(engine=engine))


def timer(engine: EngineId, at_s: float) -> SetTimer:
    return SetTimer(timer=f"start {engine}", at_s=at_s)


def test_a_lost_engine_is_started_again_after_a_pause_that_doubles_until_no_restart_is_left() -> None:
    player = RestartPlayer()
    assert player.lose(E0) == (timer(E0_R1, 11.0),)
    assert player.scheduler.timers == {"start engine-0-r1": 11.0}
    player.now = 11.0
    assert player.tell(TimerFired(timer="start engine-0-r1")) == (StartEngine(slot=E0, engine=E0_R1),)
    assert player.scheduler.timers == {}
    assert player.tell(EngineStartFailed(engine=E0_R1)) == (timer(E0_R2, 13.0),)
    assert player.tell(TimerFired(timer="start engine-0-r2")) == (StartEngine(slot=E0, engine=E0_R2),)
    assert player.tell(EngineStarted(engine=E0_R2)) == ()
    assert player.tell(EngineJoined(engine=E0_R2, policy_version=player.version)) == ()
    assert player.lose(E0_R2) == (), "its slot stays empty, and the other engine goes on"
    assert player.scheduler.restarts.next_restart(E0_R2) is None


def test_a_start_that_is_cancelled_for_the_trainer_does_not_count() -> None:
    player = RestartPlayer()
    player.lose(E0)
    player.tell(TimerFired(timer="start engine-0-r1"))
    assert player.tell(SlotsChanged(in_use=(E0, E1), withheld=(E0,))) == (CancelStart(engine=E0_R1),)
    assert player.tell(EngineStartFailed(engine=E0_R1)) == (), "late"
    assert player.tell(SlotsChanged(in_use=(E0, E1))) == (timer(E0_R2, 11.0),), "after the pause of the first restart"
    following = player.scheduler.restarts.next_restart(E0)
    assert following is not None
    assert (following.successor, following.number) == (E0_R2, 1)


def test_a_pause_that_is_cancelled_starts_nothing() -> None:
    player = RestartPlayer()
    player.lose(E0)
    assert player.tell(SlotsChanged(in_use=(E0, E1), withheld=(E0,))) == ()
    assert player.tell(TimerFired(timer="start engine-0-r1")) == ()


def test_requests_wait_for_an_engine_that_is_to_come_and_the_run_fails_when_none_is() -> None:
    player = RestartPlayer()
    player.start(0)
    player.lose(E1)
    assert [type(command) for command in player.lose(E0)] == [SetTimer]
    player.tell(TimerFired(timer="start engine-0-r1"))
    player.tell(EngineStarted(engine=E0_R1))
    assert {type(command) for command in player.tell(EngineJoined(engine=E0_R1, policy_version=player.version))} == {
        Launch
    }

    hopeless = RestartPlayer(are_replaceable=False)
    hopeless.start(0)
    assert FailWithoutEngines() not in hopeless.lose(E1)
    assert hopeless.lose(E0) == (FailWithoutEngines(),)


def test_a_run_without_engines_fails_between_rounds_too() -> None:
    player = RestartPlayer(are_replaceable=False)
    assert player.lose(E0) == ()
    assert player.lose(E1) == (FailWithoutEngines(),)


def test_an_engine_that_dies_before_it_joins_is_replaced() -> None:
    player = RestartPlayer()
    player.lose(E0)
    player.tell(TimerFired(timer="start engine-0-r1"))
    player.tell(EngineStarted(engine=E0_R1))
    assert player.lose(E0_R1) == (timer(E0_R2, 12.0),)


def test_a_new_attempt_begins_with_fresh_slots() -> None:
    player = RestartPlayer()
    player.lose(E0)
    player.tell(SlotsOpened(slots=(E0, E1)))
    assert player.scheduler.timers == {}
    player.tell(SlotsChanged(in_use=(E0, E1)))
    player.tell(EngineJoined(engine=E0, policy_version=player.version))
    assert player.lose(E0) == (timer(E0_R1, 11.0),)


def test_a_timer_that_is_not_set_cannot_fire() -> None:
    player = RestartPlayer()
    before = player.scheduler.snapshot()
    for event in (
        TimerFired(timer="start engine-0-r1"),
        EngineStarted(engine=EngineId("engine-9")),
        EngineStartFailed(engine=EngineId("engine-9")),
        SlotVacated(engine=EngineId("engine-9")),
        SlotsChanged(in_use=(EngineId("engine-9"),)),
    ):
        with pytest.raises(ImpossibleEvent):
            player.tell(event)
        assert player.scheduler.snapshot() == before


def test_no_pause_is_longer_than_a_minute() -> None:
    restarts = Restarts(RestartSettings(max_restarts=99, first_pause_s=1.0))
    restarts.begin([E0])
    restarts.use([E0], (), 0.0)
    (order,) = restarts.vacate(E0, 0.0)
    for _ in range(20):
        assert isinstance(order, SetTimer)
        (start,) = restarts.fire(order.timer)
        assert isinstance(start, StartEngine)
        (order,) = restarts.note_failed(start.engine, 0.0)
    assert order == SetTimer(timer="start engine-0-r21", at_s=LONGEST_PAUSE_S)


def test_a_pause_has_a_length_after_any_number_of_restarts() -> None:
    restarts = Restarts(RestartSettings(max_restarts=2000, first_pause_s=1.0))
    restarts.begin([E0])
    restarts.use([E0], (), 0.0)
    (order,) = restarts.vacate(E0, 0.0)
    for _ in range(1100):
        (start,) = restarts.fire(order.timer)
        (order,) = restarts.note_failed(start.engine, 0.0)
    assert order.at_s == LONGEST_PAUSE_S
