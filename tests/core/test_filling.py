"""Examples of evaluations that fill rounds: which rounds, which slots, what gives way, and when they are cut."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.commands import (
    Abort,
    BeginEvaluation,
    Command,
    EndEvaluation,
    EndRound,
    Evict,
    Launch,
    ScoreResponse,
    SetTimer,
    UseParallelism,
)
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EnginesWanted,
    EvaluationOffered,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RoundMeasured,
    TimerFired,
)
from rollpacker.core.ids import EngineId, RequestId, VersionSpan, is_held_out
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import (
    DynamicSamplingSettings,
    EvaluationSettings,
    FillSettings,
    HeldOutSet,
    ParallelismSettings,
)
from tests.core.player import Player, make_settings

SETS = (HeldOutSet(name="short", keys=("1", "2"), num_samples=2), HeldOutSet(name="long", keys=("1",), num_samples=2))
PLAIN = {"batching": "plain", "eta_prompts": Fraction(1), "eta_responses": Fraction(1)}


def filling(**changes: Any) -> EvaluationSettings:
    values: dict[str, Any] = {"num_slots": 5, "max_tokens": 10, "grace_s": 30.0, **changes}
    return EvaluationSettings(sets=SETS, every_steps=1, at_start=False, at_end=False, fill=FillSettings(**values))


class FilledPlayer(Player):
    """Eight training requests on two engines of five slots."""

    def __init__(self, **changes: Any) -> None:
        fill = changes.pop("fill", {})
        super().__init__(make_settings(**{"evaluation": filling(**fill), **PLAIN, **changes}), num_engines=2)

    def offer(self, step: int, *, is_last: bool = False) -> tuple[Command, ...]:
        return self.tell(EvaluationOffered(step=step, policy_version=self.version, is_last=is_last))

    def begin(self, step: int) -> tuple[Command, ...]:
        """Offer an evaluation before a step that is not the first, and start the step."""
        for before in range(step):
            self.start(before)
            self.complete_round(before)
        assert self.offer(step) == ()
        return self.start(step)

    def running(self) -> list[RequestId]:
        return [request for request in self.engine_of if not is_held_out(request)]

    def complete_round(self, number: int) -> tuple[Command, ...]:
        commands: tuple[Command, ...] = ()
        for request in [each for each in self.running() if each.round == number]:
            commands += self.finish(request) + self.reward(request)
        return commands

    def finish(self, request: RequestId, num_tokens: int = 5) -> tuple[Command, ...]:
        span = VersionSpan(self.version, num_tokens)
        engine = self.engine_of[request]
        return self.tell(ResponseFinished(request=request, engine=engine, num_tokens=num_tokens, spans=(span,)))


def held_out(commands: tuple[Command, ...], kind: type[Command] = Launch) -> list[str]:
    """What was launched, or evicted, or aborted of the sets, with its engine."""
    return [
        f"{command.request.prompt.key}#{command.request.sample} {command.engine[-1]}"
        for command in commands
        if isinstance(command, kind) and is_held_out(command.request)
    ]


def test_it_takes_the_slots_that_the_rounds_requests_leave_behind_them() -> None:
    player = FilledPlayer()
    commands = player.begin(1)
    assert commands[1] == BeginEvaluation(step=1, num_requests=6)
    requests = [command.request for command in commands if isinstance(command, Launch)]
    assert [is_held_out(request) for request in requests] == [False] * 8 + [True] * 2
    assert held_out(commands) == ["short/1#0 0", "short/1#1 1"]
    first = next(request for request in player.running() if request.round == 1)
    assert held_out(player.finish(first)) == [f"short/2#0 {player.engine_of[first][-1]}"]


def test_training_requests_go_where_they_would_without_an_evaluation() -> None:
    evaluated, plain = FilledPlayer(), FilledPlayer(evaluation=None)
    commands = evaluated.begin(1)
    plain.start(0)
    plain.complete_round(0)
    assert plain.start(1) == tuple(
        command
        for command in commands
        if not isinstance(command, BeginEvaluation)
        and not (isinstance(command, Launch) and is_held_out(command.request))
    )


def test_an_engine_whose_memory_could_become_full_gets_none() -> None:
    player = FilledPlayer(fill={"max_tokens": 10})
    for number in range(2):
        player.tell(EngineJoined(engine=EngineId(f"engine-{number}"), policy_version=0, kv_tokens=45))
    commands = player.begin(1)
    assert held_out(commands) == []
    first = next(request for request in player.running() if request.round == 1)
    assert len(held_out(player.finish(first))) == 1


def test_the_sets_with_the_longest_responses_come_first_once_they_are_known() -> None:
    player = FilledPlayer(fill={"num_slots": 100})
    commands = player.begin(1)
    for request in [each for each in player.engine_of if is_held_out(each)]:
        player.finish(request, num_tokens=99 if request.prompt.key.startswith("long") else 3)
        player.reward(request)
    player.complete_round(1)
    player.tell(EnginesWanted(step=1))
    player.offer(2)
    commands = player.start(2)
    assert [name[:4] for name in held_out(commands)] == ["long"] * 2 + ["shor"] * 4


def test_a_round_that_races_is_not_filled_and_the_next_long_one_is() -> None:
    player = FilledPlayer(
        batching="tail", eta_prompts=Fraction(2), eta_responses=Fraction(3, 2), fill={"num_slots": 99}
    )
    assert not held_out(player.start(0))
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    assert player.offer(1) == ()
    commands = player.start(1)  # four prompts wait: a long round
    assert isinstance(commands[1], BeginEvaluation)
    assert len(held_out(commands)) == 6
    player = FilledPlayer(batching="tail", eta_prompts=Fraction(3, 2), eta_responses=Fraction(3, 2))
    player.start(0)
    for number in range(4):
        player.complete(0, f"math-{number}", 0, 1)
    assert player.offer(1) == ()
    assert not any(isinstance(command, BeginEvaluation) for command in player.start(1))


def test_the_first_and_the_last_evaluation_are_rounds_of_their_own() -> None:
    settings = EvaluationSettings(
        sets=SETS, every_steps=2, at_start=True, at_end=True, fill=FillSettings(num_slots=1, max_tokens=1, grace_s=0.0)
    )
    for step, is_last in ((0, False), (1, True)):
        player = FilledPlayer(evaluation=settings)
        player.version = step
        if step:
            player.start(0)
            player.complete_round(0)
        assert len(held_out(player.offer(step, is_last=is_last))) == 6


def test_an_evaluation_that_found_no_round_is_made_after_the_last_step() -> None:
    player = FilledPlayer()
    player.start(0)
    player.complete_round(0)
    assert player.offer(1) == ()
    assert len(held_out(player.offer(1, is_last=True))) == 6


def test_what_an_engine_loses_to_training_leaves_and_goes_on_elsewhere() -> None:
    player = FilledPlayer()
    player.tell(EngineJoined(engine=EngineId("engine-2"), policy_version=0))
    commands = player.begin(1)
    assert any(name.endswith(" 2") for name in held_out(commands))
    lost = player.tell(EngineLost(engine=EngineId("engine-0")))
    moved = [command for command in lost if isinstance(command, Launch) and not is_held_out(command.request)]
    assert moved
    evicted = [command for command in lost if isinstance(command, Evict)]
    assert evicted
    assert all(is_held_out(command.request) for command in evicted)
    first = evicted[0]
    assert player.tell(ResponseEvicted(request=first.request, engine=first.engine, num_tokens=3)) == ()
    free = next(
        request for request in player.running() if request.round == 1 and player.engine_of[request] != "engine-0"
    )
    again = held_out(player.finish(free))
    assert [name.split()[0] for name in again] == [f"{first.request.prompt.key}#{first.request.sample}"]


def test_the_next_step_waits_for_its_end() -> None:
    player = FilledPlayer(fill={"num_slots": 100})
    player.begin(1)
    assert any(isinstance(command, EndRound) for command in player.complete_round(1))
    with pytest.raises(ImpossibleEvent, match="during an evaluation"):
        player.start(2)
    (timer,) = player.tell(EnginesWanted(step=1))
    assert timer == SetTimer(timer="evaluation 1", at_s=30.0)
    ends: tuple[Command, ...] = ()
    for request in [each for each in player.engine_of if is_held_out(each)]:
        assert player.finish(request) == (ScoreResponse(request=request),)
        ends += player.reward(request)
    assert ends == (EndEvaluation(step=1),)
    assert player.tell(TimerFired(timer="evaluation 1")) == ()
    player.start(2)


def test_what_has_no_reward_when_its_time_is_over_is_stopped() -> None:
    player = FilledPlayer(fill={"num_slots": 6})
    begun = held_out(player.begin(1))
    assert len(begun) == 4
    player.complete_round(1)
    requests = [each for each in player.engine_of if is_held_out(each)]
    player.finish(requests[0])
    player.tell(EnginesWanted(step=1))
    cut = player.tell(TimerFired(timer="evaluation 1"))
    assert cut[-1] == EndEvaluation(step=1)
    aborts = [command.request for command in cut if isinstance(command, Abort)]
    assert sorted(aborts) == sorted(requests[1:])
    assert player.reward(requests[0]) == ()  # late
    for request in aborts:
        assert player.tell(ResponseAborted(request=request, engine=player.engine_of[request], num_tokens=1)) == ()
    player.start(2)


def test_a_response_that_nobody_had_stopped_was_not_aborted() -> None:
    player = FilledPlayer()
    player.begin(1)
    request = next(each for each in player.engine_of if is_held_out(each))
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent, match="not ordered"):
        player.tell(ResponseAborted(request=request, engine=player.engine_of[request], num_tokens=1))
    assert player.scheduler.snapshot() == before


def test_a_filled_round_teaches_the_planner_nothing() -> None:
    planner = ParallelismSettings(degrees=(1, 2), initial=1)
    rounds = []
    for evaluation in (filling(num_slots=100), None):
        player = FilledPlayer(parallelism=planner, evaluation=evaluation)
        player.start(0)
        player.complete_round(0)
        if evaluation:
            player.offer(1)
        player.start(1)
        player.complete_round(1)
        if evaluation:
            player.tell(EnginesWanted(step=1))
            player.tell(TimerFired(timer="evaluation 1"))
        before = player.scheduler.snapshot()["parallelism"]["controllers"]
        commands = player.tell(RoundMeasured(round=1, num_preemptions=99, rollout_time_s=1.0, num_tokens=10))
        assert not any(isinstance(command, UseParallelism) for command in commands)
        rounds.append(player.scheduler.snapshot()["parallelism"]["controllers"] == before)
    assert rounds == [True, False]


def test_dynamic_sampling_is_refused() -> None:
    with pytest.raises(ValueError, match="which rewards come first"):
        make_settings(evaluation=filling(), dynamic_sampling=DynamicSamplingSettings())


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 60))
def test_in_any_order_each_response_counts_once_and_a_restore_changes_nothing(seed: int, cut: int) -> None:
    source = random.Random(seed)
    player = FilledPlayer(fill={"num_slots": source.choice([4, 5, 7])})
    player.begin(1)
    done: set[RequestId] = set()
    commands: list[Command] = []
    for number in range(100):
        if number == cut:
            player.scheduler = Scheduler.restore(player.settings, player.scheduler.snapshot())
        left = [request for request in player.engine_of if request.round == 1 and request not in done]
        if not left:
            break
        request = source.choice(left)
        done.add(request)
        commands += [*player.finish(request), *player.reward(request)]
    assert sum(is_held_out(request) for request in done) == 6
    assert [command for command in commands if isinstance(command, EndEvaluation)] == [EndEvaluation(step=1)]
    assert sum(isinstance(command, EndRound) for command in commands) == 1
