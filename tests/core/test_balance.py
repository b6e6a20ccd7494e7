"""Examples of balance: eight requests begin on the trainer's engine, and a worker comes that has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollpacker.core.balance import Balance
from rollpacker.core.commands import (
    BeginRound,
    EndRound,
    Evict,
    Launch,
    MeasureProgress,
    OpenEnvironment,
    RoundKind,
    SetTimer,
)
from rollpacker.core.elastic_settings import BalanceSettings
from rollpacker.core.environment_events import EnvironmentStepped, TurnFinished
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineProgress,
    ProgressMeasured,
    ResponseEvicted,
    RunningRequest,
    TimerFired,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, PromptId, RequestId, VersionSpan, held_out_prompt, member_of
from rollpacker.core.load_order import Room
from rollpacker.core.pass_times import PassTimes
from rollpacker.core.routing import Router
from rollpacker.core.settings import EnvironmentSettings
from tests.core.test_fleet import ELASTIC, LOCAL, SETTINGS, A, ElasticPlayer, of_kind, on
from tests.core.turns import RULES

MEMBER = member_of(A, 0)
BALANCE = BalanceSettings(num_slots=4, max_pending=4, max_moves=1, every_s=5.0, gain_s=5.0, max_response_tokens=1000)
TIMER = "balance of round 0"


class BalancePlayer(ElasticPlayer):
    """A round that began before its worker served."""

    def __init__(self, *, environment: EnvironmentSettings | None = None, **balance: float) -> None:
        elastic = replace(ELASTIC, balance=replace(BALANCE, **balance))
        super().__init__(replace(SETTINGS, elastic=elastic, environment=environment))
        self.publish()
        begun = self.begin(0)
        for order in of_kind(begun, OpenEnvironment):
            begun += self.observe(order.request, 0)
        self.held = {LOCAL: [each.request for each in of_kind(begun, Launch)], MEMBER: []}
        self.num_tokens = dict.fromkeys(self.held[LOCAL], 0)

    def go_on(self, num_tokens: int = 100, seconds: float = 5.0) -> None:
        """Each request has so many tokens more."""
        self.now += seconds
        self.num_tokens = {request: before + num_tokens for request, before in self.num_tokens.items()}

    def observe(self, request: RequestId, call: int, *, is_done: bool = False):
        """An environment answers."""
        return self.tell(EnvironmentStepped(request=request, call=call, num_tokens_left=900, is_done=is_done))

    def measure(self):
        engines = tuple(
            EngineProgress(
                engine=engine,
                kv_tokens_capacity=0,
                running=tuple(RunningRequest(each, 10, self.num_tokens[each]) for each in requests),
            )
            for engine, requests in self.held.items()
        )
        return self.tell(ProgressMeasured(round=0, engines=engines))

    def look_twice(self):
        """Two measurements, 100 tokens apart: of the first one nothing is known of speed."""
        self.fire(TIMER)
        assert of_kind(self.measure(), Evict) == []
        self.go_on()
        assert self.fire(TIMER)[0] == MeasureProgress(round=0)
        return self.measure()

    def evict(self, commands):
        """Engines give back what they were told to; gives the launches."""
        launches = []
        for order in of_kind(commands, Evict):
            self.held[order.engine].remove(order.request)
            answer = self.tell(ResponseEvicted(request=order.request, engine=order.engine, num_tokens=1))
            for launch in of_kind(answer, Launch):
                self.held[launch.engine].append(launch.request)
                launches.append(launch)
        return launches


def test_half_of_what_an_engine_has_moves_to_a_worker_that_has_none_the_least_tokens_first():
    player = BalancePlayer()
    player.serve(A)
    late = player.held[LOCAL][4:]
    player.num_tokens |= dict.fromkeys(player.held[LOCAL][:4], 50)
    moved = player.look_twice()
    assert [order.request for order in of_kind(moved, Evict)] == late
    assert on(A, tuple(player.evict(moved))) == late


def test_without_a_worker_nobody_is_asked():
    player = BalancePlayer()
    assert TIMER not in player.scheduler.timers
    player.serve(A)
    assert TIMER in player.scheduler.timers
    player.tell(WorkerLeft(worker=A))
    assert player.fire(TIMER) == ()
    assert TIMER not in player.scheduler.timers


def test_a_request_moves_no_more_often_than_it_may():
    player = BalancePlayer()
    player.serve(A)
    player.evict(player.look_twice())
    for request in player.held[LOCAL]:
        player.finish(request, num_tokens=500)
    player.held[LOCAL] = []
    player.go_on()
    assert player.fire(TIMER)[0] == MeasureProgress(round=0)
    assert of_kind(player.measure(), Evict) == [], "those on the worker have moved once"


@pytest.mark.parametrize(("num_tokens", "moves"), [(120, False), (900, True)])
def test_finished_trajectories_tell_how_much_the_others_have_before_them(num_tokens, moves):
    player = BalancePlayer(environment=replace(RULES, max_open=100))
    player.serve(A)
    ended = player.held[LOCAL].pop()
    spans = (VersionSpan(player.version, num_tokens),)
    player.tell(TurnFinished(request=ended, engine=LOCAL, num_tokens=num_tokens, spans=spans))
    player.observe(ended, 1, is_done=True)
    assert bool(of_kind(player.look_twice(), Evict)) is moves


def test_nothing_moves_that_gains_too_little():
    player = BalancePlayer(gain_s=60.0)
    player.serve(A)
    assert of_kind(player.look_twice(), Evict) == []


def test_moves_by_choice_can_be_switched_off():
    player = BalancePlayer(max_moves=0)
    player.serve(A)
    assert TIMER not in player.scheduler.timers
    with pytest.raises(ImpossibleEvent, match="not ordered"):
        player.measure()


def test_engines_of_equal_load_are_not_asked():
    player = BalancePlayer()
    player.serve(A)
    player.evict(player.look_twice())
    [timer] = player.fire(TIMER)
    assert timer == SetTimer(timer=TIMER, at_s=player.now + 5.0)


def test_a_measurement_of_a_round_that_is_over_moves_nothing():
    player = BalancePlayer()
    player.serve(A)
    player.fire(TIMER)
    for request in player.held[LOCAL]:
        player.finish(request)
        ended = player.reward(request)
    assert of_kind(ended, EndRound)
    assert player.tell(ProgressMeasured(round=0, engines=())) == ()


@pytest.mark.parametrize("broken", ["an engine twice", "a count below 0"])
def test_a_measurement_that_cannot_have_been_made_is_refused(broken):
    player = BalancePlayer()
    player.serve(A)
    player.fire(TIMER)
    progress = EngineProgress(LOCAL, 0, (RunningRequest(player.held[LOCAL][0], 10, -(broken == "a count below 0")),))
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent, match="twice" if broken == "an engine twice" else "below 0"):
        player.tell(ProgressMeasured(round=0, engines=(progress,) * (1 + (broken == "an engine twice"))))
    assert player.scheduler.snapshot() == before


def test_speeds_are_remembered_while_nothing_may_move():
    balance = Balance(BALANCE)
    balance.begin_round(
        BeginRound(
            round=0,
            step=0,
            kind=RoundKind.PLAIN,
            num_prompts_launched=8,
            num_prompts_needed=8,
            num_responses_launched=1,
            num_responses_needed=1,
        )
    )
    names = requests(8)
    held = {ONE: names[:5], TWO: names[5:]}
    tokens_per_s = {ONE: 30, TWO: 10}

    def measure(now, movable):
        balance.watch(now, is_served=True)
        assert balance.fire(TimerFired(timer=TIMER), held, is_starved=False)
        engines = tuple(
            EngineProgress(engine, 0, tuple(RunningRequest(each, 10, int(tokens_per_s[engine] * now)) for each in on))
            for engine, on in held.items()
        )
        balance.choose(ProgressMeasured(round=0, engines=engines), movable, held.keys(), now)

    for now in range(10, 90, 10):
        measure(now, held)
    before = balance.speeds
    assert before[ONE] > 1
    measure(90, {})
    assert balance.speeds == pytest.approx(before, rel=0.2)


# Room and order

ONE, TWO = EngineId("one"), EngineId("two")


def requests(number):
    return [RequestId(0, PromptId(0, f"q{index}"), 0) for index in range(number)]


def router_with(*kv_tokens: int, room: Room | None = None):
    router = Router()
    for engine, tokens in zip((ONE, TWO), kv_tokens, strict=False):
        router.join(engine, 0, tokens)
    router.limit(room)
    return router


def loads(launches):
    engines = [launch.engine for launch in launches]
    return engines.count(ONE), engines.count(TWO)


def test_a_faster_engine_gets_more_in_proportion():
    router = router_with(0, 0)
    router.pace({TWO: 3.0})
    assert loads(router.launch(requests(8))) == (2, 6)


def test_an_engine_with_a_smaller_cache_has_fewer_slots():
    router = router_with(1000, 250, room=Room(num_slots=8, max_pending=1, num_expected=0))
    assert loads(router.launch(requests(20))) == (9, 3)
    assert router.is_starved
    router.check(requests(20))


def test_what_has_been_on_an_engine_gets_the_next_room_before_what_was_launched_earlier():
    router = router_with(0, 0, room=Room(num_slots=1, max_pending=0, num_expected=0))
    first, second, third, fourth = requests(4)
    assert loads(router.launch([first, second, third])) == (1, 1)
    router.lose(TWO)
    assert router.launch_waiting() == []
    assert router.launch([fourth]) == []
    router.finish(first)
    assert router.launch_waiting() == [Launch(request=second, engine=ONE)]
    router.finish(second)
    assert router.launch_waiting() == [Launch(request=third, engine=ONE)]
    router.check([third, fourth])


def test_while_training_is_suspended_held_out_requests_get_the_room():
    router = router_with(0, 0, room=Room(num_slots=1, max_pending=0, num_expected=0))
    first, second = requests(2)
    held_out = [RequestId(0, held_out_prompt("new", f"{index}"), 0) for index in range(3)]
    router.launch([first, second])
    for order in router.suspend():
        assert router.move(order.request, order.engine) == []
    assert loads(router.launch(held_out)) == (1, 1)
    router.finish(held_out[0])
    assert router.launch_waiting() == [Launch(request=held_out[2], engine=ONE)]
    router.check([first, second, *held_out[1:]])
    for request in held_out[1:]:
        router.finish(request)
    assert router.launch_waiting() == []
    assert router.resume([first, second]) == [Launch(request=first, engine=ONE), Launch(request=second, engine=TWO)]
    router.check([first, second])


# Times of passes


def test_a_line_is_learned_and_an_engine_with_more_requests_is_not_a_faster_one():
    times = PassTimes()
    for number in (10, 100, 40, 80):
        times.observe(ONE, number, 0.01 + 0.001 * number)
        times.observe(TWO, number // 2, 0.01 + 0.001 * (number // 2))
    assert times.speeds == {}
    assert times.pass_s(TWO, 60) == pytest.approx(0.07)


def test_an_engine_of_twice_the_speed_is_known_for_it():
    times = PassTimes()
    for number in (10, 100, 40, 80, 20, 60, 30, 90):
        times.observe(ONE, number, 0.01 + 0.001 * number)
        times.observe(TWO, number, (0.01 + 0.001 * number) / 2)
    assert times.speeds[TWO] / times.speeds[ONE] == pytest.approx(2, rel=0.2)
    times.keep([TWO])
    assert set(times.speeds) == {TWO}
