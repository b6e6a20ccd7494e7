"""Examples of tail batching, to be read as its specification."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rollpacker.core.commands import AcceptGroup, BeginRound, DrawPrompts, EndRound, EndRun, RoundKind, ScoreResponse
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import ResponseFinished, StepStarted
from rollpacker.core.ids import Domain, EngineId, RequestId, VersionSpan
from tests.core.player import Player, aborted, accepted, begun, launched, make_settings, prompt


def test_a_short_round_launches_more_prompts_and_responses_than_it_needs() -> None:
    player = Player(make_settings())
    assert player.tell(StepStarted(step=0, policy_version=1)) == (DrawPrompts(domain=Domain("math"), num_prompts=6),)
    commands = player.tell(player.answer(DrawPrompts(domain=Domain("math"), num_prompts=6)))
    assert commands[0] == BeginRound(
        round=0,
        step=0,
        kind=RoundKind.SHORT,
        num_prompts_launched=6,
        num_prompts_needed=4,
        num_responses_launched=3,
        num_responses_needed=2,
    )
    assert len(commands) == 1 + 6 * 3


def test_a_prompt_wins_with_its_first_rewards_and_its_other_responses_are_aborted() -> None:
    player = Player(make_settings())
    player.start(0)
    request = RequestId(0, prompt("math-1"), 2)
    player.finish(request)
    player.finish(RequestId(0, prompt("math-1"), 0))
    assert player.reward(request) == ()
    commands = player.reward(RequestId(0, prompt("math-1"), 0))
    assert commands[0] == AcceptGroup(round=0, prompt=prompt("math-1"), samples=(0, 2))
    assert aborted(commands) == ["math-1#1"]


def test_a_response_without_a_reward_does_not_count() -> None:
    player = Player(make_settings())
    player.start(0)
    for sample in range(3):
        player.finish(RequestId(0, prompt("math-0"), sample))
    assert player.reward(RequestId(0, prompt("math-0"), 2)) == ()
    assert accepted(player.reward(RequestId(0, prompt("math-0"), 1))) == ["math-0"]


def test_the_last_place_ends_the_round_and_defers_the_rest_in_launch_order() -> None:
    player = Player(make_settings())
    player.start(0)
    for key in ("math-5", "math-2", "math-4"):
        player.complete(0, key, 0, 1)
    player.finish(RequestId(0, prompt("math-1"), 0))
    commands = player.complete(0, "math-3", 1, 2)
    assert aborted(commands) == ["math-3#0", "math-0#0", "math-0#1", "math-0#2", "math-1#1", "math-1#2"]
    assert commands[-1] == EndRound(
        step=0,
        round=0,
        prompts=(prompt("math-2"), prompt("math-3"), prompt("math-4"), prompt("math-5")),
        long_queue_length=2,
    )


def play_short_round(player: Player, number: int, winners: list[str]) -> None:
    assert begun(player.start(number)).kind is RoundKind.SHORT
    for key in winners:
        player.complete(number, key, 0, 1)


def test_a_long_round_runs_the_oldest_deferred_prompts_from_scratch_without_speculation() -> None:
    player = Player(make_settings())
    play_short_round(player, 0, ["math-2", "math-3", "math-4", "math-5"])
    play_short_round(player, 1, ["math-6", "math-8", "math-9", "math-11"])
    commands = player.start(2)
    assert begun(commands) == BeginRound(
        round=2,
        step=2,
        kind=RoundKind.LONG,
        num_prompts_launched=4,
        num_prompts_needed=4,
        num_responses_launched=2,
        num_responses_needed=2,
    )
    assert launched(commands) == ["math-0", "math-1", "math-7", "math-10"]
    for key in ("math-10", "math-7", "math-1"):
        assert aborted(player.complete(2, key, 0, 1)) == []
    last = player.complete(2, "math-0", 0, 1)
    assert isinstance(last[-1], EndRound)
    assert last[-1].prompts == (prompt("math-0"), prompt("math-1"), prompt("math-7"), prompt("math-10"))


def test_a_late_finish_of_an_earlier_round_does_not_count_for_the_rerun() -> None:
    player = Player(make_settings())
    play_short_round(player, 0, ["math-2", "math-3", "math-4", "math-5"])
    play_short_round(player, 1, ["math-6", "math-8", "math-9", "math-11"])
    player.start(2)
    batching = player.scheduler.snapshot()["batching"]
    stale = ResponseFinished(
        request=RequestId(0, prompt("math-0"), 0),
        engine=EngineId("engine-0"),
        num_tokens=99,
        spans=(VersionSpan(1, 99),),
    )
    assert player.tell(stale) == ()
    before = player.scheduler.snapshot()
    assert before["batching"] == batching
    assert player.tell(stale) == (), "told twice"
    assert player.reward(stale.request) == ()
    assert player.scheduler.snapshot() == before


def test_each_domain_has_its_own_race() -> None:
    domains = ((Domain("math"), Fraction(1)), (Domain("code"), Fraction(1)))
    player = Player(make_settings(domain_weights=domains))
    assert launched(player.start(0)) == ["math-0", "code-0", "math-1", "code-1", "math-2", "code-2"]
    player.complete(0, "math-1", 0, 1)
    commands = player.complete(0, "math-0", 0, 1)
    assert aborted(commands) == ["math-0#2", "math-2#0", "math-2#1", "math-2#2"]
    assert accepted(player.complete(0, "code-2", 0, 1)) == ["code-2"]
    commands = player.complete(0, "code-1", 0, 1)
    assert isinstance(commands[-1], EndRound)
    assert [drawn[0][1] for drawn in player.scheduler.snapshot()["batching"]["long_queue"]] == ["math-2", "code-0"]


def test_when_the_data_ends_everything_left_runs_without_speculation_and_then_the_run_ends() -> None:
    player = Player(make_settings(), num_prompts=11)
    play_short_round(player, 0, ["math-0", "math-1", "math-2", "math-3"])
    commands = player.start(1)
    assert begun(commands).kind is RoundKind.LONG
    assert launched(commands) == ["math-4", "math-5", "math-6", "math-7"]
    for key in launched(commands):
        player.complete(1, key, 0, 1)
    commands = player.start(2)
    assert begun(commands).num_prompts_needed == 3
    assert launched(commands) == ["math-8", "math-9", "math-10"]
    for key in launched(commands):
        player.complete(2, key, 0, 1)
    assert player.start(3) == (EndRun(),)
    assert player.start(3) == (EndRun(),), "a run that is resumed at its end ends again"


def test_when_one_domain_ends_the_others_are_trained_to_their_end_too() -> None:
    domains = ((Domain("math"), Fraction(1)), (Domain("code"), Fraction(1)))
    player = Player(make_settings(domain_weights=domains))
    player.num_left = {Domain("math"): 2, Domain("code"): 9}
    trained: list[str] = []
    step = 0
    while (commands := player.start(step)) != (EndRun(),):
        assert begun(commands).kind is RoundKind.LONG
        for key in launched(commands):
            player.complete(step, key, 0, 1)
        trained += launched(commands)
        step += 1
    assert sorted(trained) == [*(f"code-{number}" for number in range(9)), "math-0", "math-1"]


def test_without_overlap_the_race_counts_responses_and_only_the_winners_are_scored() -> None:
    player = Player(make_settings(overlap_rewards=False, num_prompts=2))
    player.start(0)
    player.finish(RequestId(0, prompt("math-2"), 0))
    for sample in (2, 1):
        commands = player.finish(RequestId(0, prompt("math-1"), sample))
    assert aborted(commands) == ["math-1#0"]
    with pytest.raises(ImpossibleEvent, match="while places of round 0 are open"):
        player.reward(RequestId(0, prompt("math-1"), 1))
    player.finish(RequestId(0, prompt("math-0"), 0))
    commands = player.finish(RequestId(0, prompt("math-0"), 1))
    assert aborted(commands) == ["math-0#2", "math-2#1", "math-2#2"]
    winners = [
        RequestId(0, prompt(key), sample)
        for key, sample in (("math-0", 0), ("math-0", 1), ("math-1", 1), ("math-1", 2))
    ]
    assert [command for command in commands if isinstance(command, ScoreResponse)] == [
        ScoreResponse(request=request) for request in winners
    ]
    for request in winners[:-1]:
        commands = player.reward(request)
    commands = player.reward(winners[-1])
    assert commands == (
        AcceptGroup(round=0, prompt=prompt("math-1"), samples=(1, 2)),
        EndRound(round=0, step=0, prompts=(prompt("math-0"), prompt("math-1")), long_queue_length=1),
    )
