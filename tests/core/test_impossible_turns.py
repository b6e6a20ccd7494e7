"""Facts of trajectories that cannot be true are refused, and change nothing."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rollpacker.core.commands import StepEnvironment
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.ids import RequestId, VersionSpan, held_out_prompt
from rollpacker.core.settings import AsyncSettings, EvaluationSettings, HeldOutSet
from tests.core.player import Player, make_settings, prompt
from tests.core.test_environments import ENGINES, TurnsPlayer, first, only


def test_an_answer_to_a_call_that_was_never_made_is_impossible_and_changes_nothing():
    player = TurnsPlayer()
    player.start(0)
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent, match="answered call 7"):
        player.tell(EnvironmentStepped(request=first(), call=7, num_tokens_left=9, is_done=False))
    assert player.scheduler.snapshot() == before


HELD_OUT_FIRST = RequestId(0, held_out_prompt("unseen", "a"), 0)
ASYNCHRONOUS = AsyncSettings(max_staleness=2, lookahead=Fraction(1), num_steps=3)


def turn(request: RequestId, version: int) -> TurnFinished:
    return TurnFinished(request=request, engine=ENGINES[0], num_tokens=5, spans=(VersionSpan(version, 5),))


@pytest.mark.parametrize("asynchronous", [None, ASYNCHRONOUS])
@pytest.mark.parametrize("version", [-1, 99])
def test_a_turn_of_another_policy_version_is_impossible_and_changes_nothing(asynchronous, version):
    player = TurnsPlayer(asynchronous=asynchronous)
    player.start(0)
    player.answer_call(first())
    before = player.scheduler.snapshot()
    with pytest.raises(ImpossibleEvent, match="policy versions"):
        player.tell(turn(first(), version))
    assert player.scheduler.snapshot() == before
    assert only(player.end_turn(first()), StepEnvironment)


@pytest.mark.parametrize("asynchronous", [None, ASYNCHRONOUS])
@pytest.mark.parametrize("request_of_nobody", [RequestId(7, prompt("math-0"), 0), RequestId(0, prompt("math-0"), 99)])
def test_facts_of_a_trajectory_that_was_never_started_are_impossible(asynchronous, request_of_nobody):
    player = TurnsPlayer(asynchronous=asynchronous)
    player.start(0)
    before = player.scheduler.snapshot()
    for event in (
        turn(request_of_nobody, player.version),
        EnvironmentBegan(request=request_of_nobody, call=0),
        EnvironmentStepped(request=request_of_nobody, call=0, num_tokens_left=9, is_done=False),
        EnvironmentFailed(request=request_of_nobody, call=0, reason="environment_error"),
    ):
        with pytest.raises(ImpossibleEvent, match=r"to come|never launched"):
            player.tell(event)
    assert player.scheduler.snapshot() == before


@pytest.mark.parametrize("fact", [turn(HELD_OUT_FIRST, 0), EnvironmentBegan(request=HELD_OUT_FIRST, call=0)])
def test_facts_of_a_held_out_trajectory_before_the_first_evaluation_are_impossible(fact):
    held_out = HeldOutSet(name="unseen", keys=("a",), num_samples=1)
    evaluation = EvaluationSettings(sets=(held_out,), every_steps=1, at_start=True, at_end=True)
    player = TurnsPlayer(evaluation=evaluation)
    with pytest.raises(ImpossibleEvent, match="never launched"):
        player.tell(fact)


def test_a_turn_in_a_run_without_environments_is_impossible():
    player = Player(make_settings())
    player.start(0)
    with pytest.raises(ImpossibleEvent, match="without environments"):
        player.tell(EnvironmentFailed(request=first(), call=0, reason="x"))
