"""Examples of evaluation: when it is due, what it launches, what it waits for, and what it never touches."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.commands import BeginEvaluation, BeginRound, Command, EndEvaluation, Launch, ScoreResponse
from rollpacker.core.errors import CheckpointError, ImpossibleEvent
from rollpacker.core.evaluation import Evaluation
from rollpacker.core.events import (
    CaseRun,
    EngineLost,
    EngineUpdated,
    EvaluationOffered,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import EngineId, RequestId, VersionSpan, held_out_prompt
from rollpacker.core.scheduler import Scheduler
from rollpacker.core.settings import EvaluationSettings, HeldOutSet, RewardBudgetSettings
from tests.core.player import Player, launched, make_settings, prompt

SETS = (
    HeldOutSet(name="aime", keys=("1", "2"), num_samples=2),
    HeldOutSet(name="gsm", keys=("1",), num_samples=1),
)
REQUESTS = tuple(
    RequestId(0, held_out_prompt(held_out.name, key), sample)
    for held_out in SETS
    for key in held_out.keys
    for sample in range(held_out.num_samples)
)


def rules(**changes: Any) -> EvaluationSettings:
    values: dict[str, Any] = {"sets": SETS, "every_steps": 2, "at_start": True, "at_end": True}
    return EvaluationSettings(**{**values, **changes})


class EvaluatedPlayer(Player):
    def __init__(self, *, num_engines: int = 1, **changes: Any) -> None:
        super().__init__(make_settings(**{"evaluation": rules(), **changes}), num_engines=num_engines)

    def offer(self, step: int, *, is_last: bool = False) -> tuple[Command, ...]:
        self.version = step
        for engine in self.scheduler.engines:
            self.tell(EngineUpdated(engine=engine, policy_version=step))
        return self.tell(EvaluationOffered(step=step, policy_version=step, is_last=is_last))

    def evaluate(self, step: int) -> tuple[Command, ...]:
        """Make an evaluation from its offer to its end; gives the commands of the last reward."""
        commands = self.offer(step)
        for request in [command.request for command in commands if isinstance(command, Launch)]:
            assert self.finish(request) == (ScoreResponse(request=request),)
            commands = self.reward(request)
        return commands

    def finish(self, request: RequestId) -> tuple[Command, ...]:
        span = VersionSpan(self.version, 5)
        return self.tell(ResponseFinished(request=request, engine=self.engine_of[request], num_tokens=5, spans=(span,)))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [0, 2, 4, 5]),
        ({"at_start": False}, [2, 4, 5]),
        ({"at_end": False}, [0, 2, 4]),
        ({"every_steps": 0}, [0, 5]),
        ({"every_steps": 5}, [0, 5]),  # the last step's turn comes once
        ({"every_steps": 0, "at_start": False, "at_end": False}, []),
    ],
)
def test_an_evaluation_is_due_at_the_start_every_n_steps_and_at_the_end(
    changes: dict[str, Any], expected: list[int]
) -> None:
    machine = Evaluation(rules(**changes))
    evaluated = []
    for step, is_last in [*((step, False) for step in range(6)), (5, True)]:
        commands = machine.handle(EvaluationOffered(step=step, policy_version=step, is_last=is_last))
        evaluated += [command.step for command in commands if isinstance(command, BeginEvaluation)]
        for request in machine.running_requests():
            machine.handle(ResponseFinished(request=request, engine=EngineId("e"), num_tokens=1, spans=()))
            machine.handle(RewardComputed(request=request, reward=0.0))
    assert evaluated == expected


def test_it_launches_every_sample_of_every_prompt_and_ends_with_the_last_reward() -> None:
    player = EvaluatedPlayer()
    commands = player.offer(0)
    assert commands[0] == BeginEvaluation(step=0, num_requests=5)
    assert [command.request for command in commands[1:] if isinstance(command, Launch)] == list(REQUESTS)
    for request in REQUESTS:
        player.finish(request)
    for request in REQUESTS[1:]:
        assert player.reward(request) == ()
    assert player.reward(REQUESTS[0]) == (EndEvaluation(step=0),)


def test_a_training_round_follows_as_if_nothing_had_been_evaluated() -> None:
    evaluated, plain = EvaluatedPlayer(num_engines=2), EvaluatedPlayer(num_engines=2, evaluation=None)
    assert evaluated.evaluate(0) == (EndEvaluation(step=0),)
    for player in (evaluated, plain):
        player.version = 1
    assert evaluated.start(0) == plain.start(0)


def test_what_ran_on_a_lost_engine_is_launched_on_another_and_counted_once() -> None:
    player = EvaluatedPlayer(num_engines=2)
    player.offer(0)
    on_first = [request for request in REQUESTS if player.engine_of[request] == "engine-0"]
    commands = player.tell(EngineLost(engine=EngineId("engine-0")))
    assert [command.request for command in commands if isinstance(command, Launch)] == on_first
    for request in REQUESTS:
        late = ResponseFinished(request=request, engine=EngineId("engine-0"), num_tokens=5, spans=())
        if request in on_first:
            assert player.tell(late) == ()
        assert player.finish(request) == (ScoreResponse(request=request),)
        assert player.finish(request) == ()
    ends = [player.reward(request) for request in REQUESTS]
    assert ends == [(), (), (), (), (EndEvaluation(step=0),)]
    assert player.reward(REQUESTS[0]) == ()  # late


def test_time_limits_of_programs_learn_nothing_from_held_out_ones() -> None:
    player = EvaluatedPlayer(reward_budget=RewardBudgetSettings())
    player.offer(0)
    player.finish(REQUESTS[0])
    player.tell(RewardComputed(request=REQUESTS[0], reward=1.0, case_runs=(CaseRun(0, 3.0, True),)))
    assert player.scheduler.snapshot()["reward_budget"] == {"anchors": {}}


@pytest.mark.parametrize(
    "event",
    [
        StepStarted(step=0, policy_version=0),
        EvaluationOffered(step=1, policy_version=0, is_last=False),
        RewardComputed(request=REQUESTS[0], reward=1.0),
        ResponseFinished(request=RequestId(1, *REQUESTS[0][1:]), engine=EngineId("engine-0"), num_tokens=1, spans=()),
        ResponseFinished(request=REQUESTS[0]._replace(sample=2), engine=EngineId("engine-0"), num_tokens=1, spans=()),
        RewardComputed(request=RequestId(0, held_out_prompt("aime", "3"), 0), reward=1.0),
    ],
)
def test_what_cannot_happen_in_an_evaluation_raises_and_changes_nothing(event: Any) -> None:
    player = EvaluatedPlayer()
    player.offer(0)
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent):
        player.tell(event)
    assert player.scheduler.snapshot() == before


def test_an_evaluation_is_not_offered_in_a_round_nor_to_a_run_without_held_out_sets() -> None:
    player = EvaluatedPlayer()
    player.start(0)
    with pytest.raises(ImpossibleEvent, match="in a round"):
        player.tell(EvaluationOffered(step=1, policy_version=1, is_last=False))
    with pytest.raises(ImpossibleEvent, match="without held-out sets"):
        EvaluatedPlayer(evaluation=None).offer(0)


@given(seed=st.integers(0, 2**32), cut=st.integers(0, 10))
def test_in_any_order_each_response_counts_once_and_a_restore_changes_nothing(seed: int, cut: int) -> None:
    source = random.Random(seed)
    player = EvaluatedPlayer(num_engines=2)
    player.offer(0)
    generating, scoring = list(REQUESTS), []
    scored: list[RequestId] = []
    for number in range(2 * len(REQUESTS)):
        if number == cut:
            player.scheduler = Scheduler.restore(player.settings, player.scheduler.snapshot())
        pool = source.choice([each for each in (generating, scoring) if each])
        request = pool.pop(source.randrange(len(pool)))
        if pool is generating:
            assert player.finish(request) == (ScoreResponse(request=request),)
            scoring.append(request)
        else:
            scored.append(request)
            is_end = len(scored) == len(REQUESTS)
            assert player.reward(request) == ((EndEvaluation(step=0),) if is_end else ())
    assert sorted(scored) == sorted(REQUESTS)
    assert player.offer(0) == ()


def test_a_run_may_be_resumed_with_other_held_out_sets_or_with_its_first_ones() -> None:
    player = EvaluatedPlayer()
    player.evaluate(0)
    snapshot = player.scheduler.snapshot()
    other = rules(sets=(HeldOutSet(name="new", keys=("a",), num_samples=3),))
    restored = Scheduler.restore(make_settings(evaluation=other), snapshot)
    restored.handle(EngineUpdated(engine=EngineId("engine-0"), policy_version=2), 0.0)
    commands = restored.handle(EvaluationOffered(step=2, policy_version=2, is_last=False), 0.0)
    assert launched(commands) == ["new/a"]
    Scheduler.restore(make_settings(), snapshot)
    Scheduler.restore(make_settings(evaluation=other), Scheduler(make_settings()).snapshot())
    with pytest.raises(CheckpointError):
        Scheduler.restore(make_settings(batching="plain"), snapshot)


def test_a_round_keeps_its_number_whatever_was_evaluated_before() -> None:
    player = EvaluatedPlayer(batching="plain", eta_prompts=Fraction(1), eta_responses=Fraction(1))
    player.evaluate(0)
    (begin,) = (command for command in player.start(0) if isinstance(command, BeginRound))
    assert begin.round == 0
    assert prompt("math-0") in {request.prompt for request in player.engine_of}
