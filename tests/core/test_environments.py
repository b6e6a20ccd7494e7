from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import Counter
from typing import Any

import pytest

from rollpacker.core.commands import (
    AcceptGroup,
    CloseEnvironment,
    Command,
    DropPrompt,
    EndRound,
    FailRun,
    Launch,
    OpenEnvironment,
    ScoreResponse,
    SetTimer,
    StepEnvironment,
)
from rollpacker.core.engine_states import Closing
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.environments import LOST, TIMER, Environments
from rollpacker.core.events import EngineJoined, EngineLost, RewardComputed, TimerFired
from rollpacker.core.ids import HELD_OUT, EngineId, PromptId, RequestId, VersionSpan
from rollpacker.core.load_order import Room
from rollpacker.core.routing import Router
from rollpacker.core.scheduler import Scheduler
from tests.core import turns
from tests.core.player import Player, make_settings, prompt
from tests.core.turns import RULES, TurnsWorld

ROOMY = dataclasses.replace(RULES, max_open=100)
ENGINES = (EngineId("engine-0"), EngineId("engine-1"))


class TurnsPlayer(Player):
    """A scheduler of a run with environments, played by hand."""

    def __init__(self, *, num_prompts: int = 1, num_engines: int = 1, **changes: Any) -> None:
        values = {"batching": "plain", "environment": ROOMY, "num_prompts": num_prompts, **changes}
        super().__init__(make_settings(**values), num_engines=num_engines)
        self.call: Counter[RequestId] = Counter()

    def tell(self, event: Any) -> tuple[Command, ...]:
        commands = super().tell(event)
        for command in commands:
            if isinstance(command, OpenEnvironment | StepEnvironment):
                self.call[command.request] = command.call
        return commands

    def answer_call(self, request: RequestId, *, is_done: bool = False, left: int = 9) -> tuple[Command, ...]:
        answer = EnvironmentStepped(request=request, call=self.call[request], num_tokens_left=left, is_done=is_done)
        return self.tell(answer)

    def begin_reset(self, request: RequestId) -> tuple[Command, ...]:
        return self.tell(EnvironmentBegan(request=request, call=self.call[request]))

    def crash(self, request: RequestId, reason: str = "environment_error") -> tuple[Command, ...]:
        return self.tell(EnvironmentFailed(request=request, call=self.call[request], reason=reason))

    def end_turn(self, request: RequestId) -> tuple[Command, ...]:
        spans = (VersionSpan(self.version, 5),)
        return self.tell(TurnFinished(request=request, engine=self.engine_of[request], num_tokens=5, spans=spans))

    def begin(self, request: RequestId) -> None:
        self.answer_call(request)

    def due_at_s(self, request: RequestId) -> float:
        environments = self.scheduler.beside.environments
        assert environments is not None
        return environments._trajectories[request].due_at_s

    def finish_trajectory(self, request: RequestId) -> tuple[Command, ...]:
        self.answer_call(request)
        self.end_turn(request)
        return self.answer_call(request, is_done=True)


def first(sample: int = 0, key: str = "math-0") -> RequestId:
    return RequestId(0, prompt(key), sample)


def only(commands: tuple[Command, ...], kind: type) -> list[Any]:
    return [command for command in commands if isinstance(command, kind)]


def launch_of(commands: tuple[Command, ...]) -> Launch:
    [launch] = only(commands, Launch)
    return launch


def test_a_trajectory_goes_from_reset_to_turns_to_its_reward():
    player = TurnsPlayer()
    begun = player.start(0)
    assert only(begun, OpenEnvironment) == [OpenEnvironment(request=first(each), call=0) for each in (0, 1)]
    assert not only(begun, Launch), "no engine before the environment has spoken"
    assert only(player.answer_call(first()), Launch) == [Launch(request=first(), engine=player.engine_of[first()])]
    assert only(player.end_turn(first()), StepEnvironment) == [StepEnvironment(request=first(), call=1)]
    assert only(player.answer_call(first()), Launch)
    player.end_turn(first())
    done = player.answer_call(first(), is_done=True)
    assert only(done, ScoreResponse) == [ScoreResponse(request=first())]
    assert only(done, CloseEnvironment) == [CloseEnvironment(request=first(), reason="finished")]


def test_while_an_environment_acts_its_slot_is_anothers():
    player = TurnsPlayer()
    player.start(0)
    player.answer_call(first(0))
    player.answer_call(first(1))
    assert player.scheduler._router.holders.keys() == {first(0), first(1)}
    player.end_turn(first(0))
    assert player.scheduler._router.holders.keys() == {first(1)}


@pytest.fixture
def six_on_each() -> tuple[TurnsPlayer, list[RequestId], list[RequestId]]:
    """Two engines, and the first turns that each of them generates."""
    player = TurnsPlayer(num_prompts=6, num_engines=2)
    player.start(0)
    for key, sample in itertools.product([f"math-{number}" for number in range(6)], (0, 1)):
        player.answer_call(first(sample, key))
    one, other = ([each for each, engine in player.engine_of.items() if engine == name] for name in ENGINES)
    assert len(one) == len(other) == 6
    return player, one, other


@pytest.mark.parametrize("num_left", range(7))
def test_a_next_turn_goes_to_the_engine_of_the_last_one_unless_that_has_five_more_than_another(six_on_each, num_left):
    player, mine, others = six_on_each
    for request in (mine[0], *others[num_left:]):
        player.end_turn(request)
    player.scheduler = Scheduler.restore(player.settings, json.loads(json.dumps(player.scheduler.snapshot())))
    assert launch_of(player.answer_call(mine[0])) == Launch(request=mine[0], engine=ENGINES[num_left == 0])


def test_of_equally_loaded_engines_a_next_turn_goes_to_that_of_the_last_one_and_not_to_the_first(six_on_each):
    player, one, other = six_on_each
    player.end_turn(one[0])
    player.end_turn(other[0])
    assert launch_of(player.answer_call(other[0])) == Launch(request=other[0], engine=ENGINES[1])


def test_a_next_turn_whose_last_engine_is_lost_goes_to_another(six_on_each):
    player, _, other = six_on_each
    for request in other:
        player.end_turn(request)
    player.tell(EngineLost(engine=ENGINES[1]))
    assert launch_of(player.answer_call(other[0])) == Launch(request=other[0], engine=ENGINES[0])


def test_a_trajectory_that_begins_again_prefers_no_engine(six_on_each):
    player, one, other = six_on_each
    player.end_turn(one[0])
    player.end_turn(other[0])
    player.crash(other[0])
    assert launch_of(player.answer_call(other[0])) == Launch(request=other[0], engine=ENGINES[0])


@pytest.mark.parametrize("reason", Closing)
def test_a_closed_engine_is_not_preferred(reason):
    router = joined_router()
    router.close([ENGINES[1]], reason)
    assert router.launch([first()], ENGINES[1]) == [Launch(request=first(), engine=ENGINES[0])]
    router.check([first()])


def test_an_engine_without_room_is_not_preferred():
    router = joined_router()
    router.limit(Room(num_slots=1, max_pending=0, num_expected=0))
    assert router.launch([first(0)], ENGINES[1]) == [Launch(request=first(0), engine=ENGINES[1])]
    router.check([first(0)])
    assert router.launch([first(1)], ENGINES[1]) == [Launch(request=first(1), engine=ENGINES[0])]
    router.check([first(0), first(1)])


def joined_router() -> Router:
    router = Router()
    for engine in ENGINES:
        router.join(engine, 0, 0)
    return router


@pytest.mark.parametrize("end", [{"is_done": True}, {"left": 0}])
def test_a_trajectory_ends_when_it_is_done_or_no_token_is_left(end):
    player = TurnsPlayer()
    player.start(0)
    player.answer_call(first())
    player.end_turn(first())
    assert only(player.answer_call(first(), **end), ScoreResponse)


def test_a_trajectory_ends_with_its_last_turn_which_the_environment_still_answers():
    player = TurnsPlayer()
    player.start(0)
    for _ in range(ROOMY.max_turns):
        assert only(player.answer_call(first()), Launch)
        assert only(player.end_turn(first()), StepEnvironment)
    assert only(player.answer_call(first()), ScoreResponse)


def test_no_more_environments_are_open_than_may_be_and_the_next_opens_when_one_closes():
    player = TurnsPlayer(environment=dataclasses.replace(RULES, max_open=1))
    assert [each.request for each in only(player.start(0), OpenEnvironment)] == [first(0)]
    player.answer_call(first(0))
    player.end_turn(first(0))
    done = player.answer_call(first(0), is_done=True)
    assert [each.request for each in only(done, OpenEnvironment)] == [first(1)]


@pytest.mark.parametrize("shown_s", [2.0, math.nextafter(2.0, 0)])
def test_no_more_environments_start_than_a_minute_bears_and_the_timer_opens_the_next(shown_s):
    player = TurnsPlayer(environment=dataclasses.replace(ROOMY, starts_per_minute=30.0))
    begun = player.start(0)
    assert [each.request for each in only(begun, OpenEnvironment)] == [first(0)]
    (timer,) = [each for each in only(begun, SetTimer) if each.timer == TIMER]
    assert timer.at_s == player.now + 2.0
    assert not only(player.answer_call(first(0)), OpenEnvironment), "not before its time, whatever happens"
    player.now = shown_s
    later = player.tell(TimerFired(timer=TIMER))
    assert [each.request for each in only(later, OpenEnvironment)] == [first(1)]
    assert player.scheduler.snapshot() == Scheduler.restore(player.settings, player.scheduler.snapshot()).snapshot()


def test_what_waits_for_its_minute_is_not_looked_through(monkeypatch):
    machine = Environments(dataclasses.replace(ROOMY, starts_per_minute=30.0))
    machine.start([RequestId(0, PromptId(0, f"p{number}"), 0) for number in range(9)])
    assert len(machine.act(1.0)) == 1 + 1  # one is opened, and the timer is set
    monkeypatch.setattr(Environments, "_startable", lambda *_: pytest.fail("looked"))
    machine.act(1.5)


def test_held_out_trajectories_start_before_those_of_training_that_wait_for_their_minute():
    machine = Environments(dataclasses.replace(ROOMY, starts_per_minute=30.0))
    held_out = RequestId(1, PromptId(HELD_OUT, "unseen/a"), 0)
    machine.start([first(0), first(1)])
    opened = only(machine.act(0.0), OpenEnvironment)
    machine.start([held_out])
    for now in (2.0, 4.0):
        opened += only(machine.act(now), OpenEnvironment)
    assert [each.request for each in opened] == [first(0), held_out, first(1)]


def test_worlds_with_paced_starts_hold_too(monkeypatch):
    monkeypatch.setattr(turns, "RULES", dataclasses.replace(RULES, starts_per_minute=120.0))
    for seed in range(40):
        world = TurnsWorld(seed)
        world.run()
        world.check()


def test_worlds_end_in_which_suspended_trajectories_hold_every_place_while_others_are_evaluated(monkeypatch):
    monkeypatch.setattr(turns, "RULES", dataclasses.replace(RULES, max_open=1))
    for seed in range(40):
        world = TurnsWorld(seed)
        world.run()
        world.check()


def test_an_environment_that_crashes_begins_again_without_its_engine_or_prompt_suffering():
    player = TurnsPlayer()
    player.start(0)
    player.answer_call(first())
    player.end_turn(first())
    again = player.crash(first())
    assert only(again, CloseEnvironment) == [
        CloseEnvironment(request=first(), reason="environment_error", begins_again=True)
    ]
    assert only(again, OpenEnvironment) == [OpenEnvironment(request=first(), call=2)]
    assert not only(again, DropPrompt)


@pytest.mark.parametrize("shown_s", [RULES.reset_timeout_s, math.nextafter(RULES.reset_timeout_s, 0)])
def test_an_environment_that_hangs_is_ended_by_the_timer_and_begins_again(shown_s):
    player = TurnsPlayer()
    player.start(0)
    (timer,) = only(player.begin_reset(first(0)), SetTimer)
    assert timer == SetTimer(timer=TIMER, at_s=RULES.reset_timeout_s)
    player.answer_call(first(1))
    player.now = shown_s
    late = player.tell(TimerFired(timer=TIMER))
    assert only(late, CloseEnvironment) == [
        CloseEnvironment(request=first(0), reason="environment_timeout", begins_again=True)
    ]
    assert only(late, OpenEnvironment) == [OpenEnvironment(request=first(0), call=1)]
    assert player.tell(EnvironmentStepped(request=first(0), call=0, num_tokens_left=9, is_done=False)) == ()


def test_the_time_of_a_reset_begins_with_it_however_long_it_waited_for_its_process():
    player = TurnsPlayer()
    player.start(0)
    (one, other) = (first(0), first(1))
    wait_s = RULES.opening_timeout_s - 1.0
    player.now = wait_s
    player.begin_reset(one)
    assert player.due_at_s(one) == wait_s + RULES.reset_timeout_s
    player.now = RULES.opening_timeout_s
    assert not only(player.tell(TimerFired(timer=TIMER)), CloseEnvironment), "what waits is not timed, starts go on"
    player.now = wait_s + 4.0
    player.answer_call(one)
    player.end_turn(one)
    left_s = RULES.episode_timeout_s - 4.0  # the wait is no answer, either
    assert player.due_at_s(one) == player.now + min(RULES.turn_timeout_s, left_s)
    player.begin_reset(other)
    player.now += RULES.reset_timeout_s
    player.answer_call(one)
    late = player.tell(TimerFired(timer=TIMER))
    assert [(each.request, each.reason) for each in only(late, CloseEnvironment)] == [(other, "environment_timeout")]


def test_a_reset_that_waits_while_nothing_is_heard_of_any_start_fails_for_it_would_wait_for_ever():
    player = TurnsPlayer()
    (timer,) = only(player.start(0), SetTimer)
    assert timer.at_s == RULES.opening_timeout_s
    player.now = heard_s = 4.0
    player.begin_reset(first(0))
    player.answer_call(first(0))
    player.now = timer.at_s
    (timer,) = only(player.tell(TimerFired(timer=TIMER)), SetTimer)
    assert timer.at_s == heard_s + RULES.opening_timeout_s
    player.scheduler = Scheduler.restore(player.settings, json.loads(json.dumps(player.scheduler.snapshot())))
    player.now = timer.at_s
    stuck = player.tell(TimerFired(timer=TIMER))
    assert [each.request for each in only(stuck, CloseEnvironment)] == [first(1)]
    assert [each.request for each in only(stuck, OpenEnvironment)] == [first(1)]


def test_a_reset_that_begins_late_or_twice_changes_nothing():
    player = TurnsPlayer()
    player.start(0)
    player.begin_reset(first(0))
    due_at_s, player.now = player.due_at_s(first(0)), 1.0
    assert player.begin_reset(first(0)) == ()
    assert player.due_at_s(first(0)) == due_at_s
    player.answer_call(first(0))
    assert player.begin_reset(first(0)) == ()
    assert player.scheduler.is_in_flight(first(0))


def test_answers_of_one_trajectory_may_take_so_long_together_whatever_engines_take():
    player = TurnsPlayer()
    player.start(0)
    for _ in range(2):
        player.now += 2.5
        player.answer_call(first())
        player.now += 1000.0  # an engine that is suspended costs the environment nothing
        player.end_turn(first())
    assert player.due_at_s(first()) == player.now + RULES.episode_timeout_s - 5.0


def test_a_prompt_that_keeps_failing_is_dropped_and_the_batch_is_smaller():
    player = TurnsPlayer(num_prompts=2)
    player.start(0)
    for _ in range(RULES.max_restarts):
        assert not only(player.crash(first()), DropPrompt)
    dropping = player.crash(first())
    assert only(dropping, DropPrompt) == [DropPrompt(round=0, prompt=prompt("math-0"))]
    assert CloseEnvironment(request=first(1), reason="stopped") in dropping
    for sample in (0, 1):
        player.finish_trajectory(first(sample, "math-1"))
        ending = player.tell(RewardComputed(request=first(sample, "math-1"), reward=1.0))
    assert only(ending, AcceptGroup)
    assert [each.prompts for each in only(ending, EndRound)] == [(prompt("math-1"),)]


def test_an_environment_that_was_lost_with_its_node_or_the_attempt_of_the_run_is_not_counted():
    player = TurnsPlayer(num_prompts=2)
    player.start(0)
    for _ in range(RULES.max_restarts + 3):
        assert not only(player.crash(first(), LOST), DropPrompt)
    for _ in range(RULES.max_restarts):
        assert not only(player.crash(first()), DropPrompt)
    assert only(player.crash(first()), DropPrompt)


def test_a_trajectory_whose_environment_is_lost_before_an_engine_has_its_turn_begins_again_at_once():
    player = TurnsPlayer(num_engines=0)
    player.start(0)
    player.answer_call(first())  # its turn waits for an engine
    begun = player.crash(first(), LOST)
    assert [each.request for each in only(begun, OpenEnvironment)] == [first()]
    player.scheduler.check()
    assert not only(player.tell(EngineJoined(engine=ENGINES[0], policy_version=player.version)), Launch)


def test_a_turn_that_an_engine_generates_is_not_stopped_for_an_environment_that_is_lost():
    player = TurnsPlayer()
    player.start(0)
    player.answer_call(first())
    assert not player.crash(first(), LOST)
    assert only(player.end_turn(first()), StepEnvironment)


def test_in_a_race_a_sample_that_keeps_failing_costs_its_prompt_nothing_while_enough_are_left():
    player = TurnsPlayer(batching="tail", num_prompts=2)
    player.start(0)
    for _ in range(RULES.max_restarts + 1):
        commands = player.crash(first(0))
    assert not only(commands, DropPrompt), "three samples race for a group of two"
    for sample in (1, 2):
        player.finish_trajectory(first(sample))
        commands = player.tell(RewardComputed(request=first(sample), reward=1.0))
    assert [each.samples for each in only(commands, AcceptGroup)] == [(1, 2)]


def test_the_run_fails_when_environments_fail_for_every_prompt():
    player = TurnsPlayer()
    player.start(0)
    for _ in range(RULES.max_restarts + 1):
        commands = player.crash(first())
    assert only(commands, FailRun)


def test_a_reset_that_leaves_nothing_to_say_is_a_failure():
    player = TurnsPlayer()
    player.start(0)
    assert only(player.answer_call(first(), is_done=True), OpenEnvironment) == [
        OpenEnvironment(request=first(), call=1)
    ]


@pytest.mark.parametrize("block", range(10))
def test_in_random_worlds_of_failing_environments_each_prompt_is_trained_or_dropped_once(block: int):
    closed: Counter[str] = Counter()
    for seed in range(block * 30, block * 30 + 30):
        world = TurnsWorld(seed)
        world.run()
        world.check()
        closed += world.closed
    assert {"finished", "stopped", "environment_error", "environment_timeout"} <= closed.keys()


def test_a_world_goes_on_alike_whether_or_not_it_is_restored_in_between():
    worlds = [TurnsWorld(5), TurnsWorld(5)]
    worlds[1].restores = False
    for world in worlds:
        world.run()
    assert worlds[0].accepted
    assert worlds[0].accepted == worlds[1].accepted
    assert worlds[0].closed == worlds[1].closed
