"""Examples of dynamic sampling, to be read as its specification."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from rollpacker.core.batching_machine import GivenUp
from rollpacker.core.commands import (
    Command,
    DrawPrompts,
    DropPrompt,
    EndRound,
    EndRun,
    FailRun,
    RoundKind,
    ScoreResponse,
)
from rollpacker.core.dynamic_sampling import DynamicSampling
from rollpacker.core.events import PromptsDrawn, ResponseFinished, RewardComputed, StepStarted
from rollpacker.core.ids import Domain, EngineId, RequestId, VersionSpan
from rollpacker.core.settings import DynamicSamplingSettings
from tests.core.player import Player, aborted, accepted, begun, launched, make_settings, prompt
from tests.core.turns import RULES


def player_of(num_prompts: int | None = None, *, batching: str = "plain", **sampling: Any) -> Player:
    dynamic = DynamicSamplingSettings(**sampling)
    return Player(make_settings(batching=batching, dynamic_sampling=dynamic), num_prompts=num_prompts)


def complete(player: Player, number: int, key: str, *rewards: float) -> tuple[Command, ...]:
    """Finish and score a prompt's first samples; answers the draws that follow, and gives what came of it all."""
    commands: tuple[Command, ...] = ()
    for sample, reward in enumerate(rewards):
        request = RequestId(number, prompt(key), sample)
        player.finish(request)
        commands = player.settle(player.tell(RewardComputed(request=request, reward=reward)))
    return commands


def dropped(commands: tuple[Command, ...]) -> list[str]:
    return [command.prompt.key for command in commands if isinstance(command, DropPrompt)]


def test_a_prompt_whose_rewards_are_all_equal_is_dropped_and_another_one_runs_in_its_place() -> None:
    player = player_of()
    assert launched(player.start(0)) == ["math-0", "math-1", "math-2", "math-3"]
    assert accepted(complete(player, 0, "math-1", 0, 1)) == ["math-1"]
    commands = complete(player, 0, "math-2", 1, 1)
    assert dropped(commands) == ["math-2"]
    assert launched(commands) == ["math-4"]
    commands = complete(player, 0, "math-4", 0, 0)
    assert (dropped(commands), launched(commands)) == (["math-4"], ["math-5"])
    for key in ("math-5", "math-3"):
        complete(player, 0, key, 1, 0)
    end = complete(player, 0, "math-0", 0, 1)[-1]
    batch = ("math-0", "math-1", "math-3", "math-5")
    assert end == EndRound(round=0, step=0, prompts=tuple(map(prompt, batch)), long_queue_length=0)


def test_a_short_round_defers_who_was_too_slow_but_never_who_was_dropped() -> None:
    player = player_of(batching="tail")
    assert len(launched(player.start(0))) == 6
    commands = complete(player, 0, "math-0", 1, 1)
    assert aborted(commands) == ["math-0#2"]
    assert launched(commands) == ["math-6"], "as many race as before"
    for key in ("math-6", "math-2", "math-3"):
        complete(player, 0, key, 0, 1)
    end = complete(player, 0, "math-4", 0, 1)[-1]
    assert isinstance(end, EndRound)
    assert end.long_queue_length == 2
    queue = [drawn[0][1] for drawn in player.scheduler.snapshot()["batching"]["long_queue"]]
    assert queue == ["math-1", "math-5"]


def test_a_long_round_fills_its_places_from_the_queue_and_then_with_new_prompts() -> None:
    player = player_of(batching="tail")
    for number, winners in enumerate((["math-2", "math-3", "math-4", "math-5"], ["math-6", "math-7", "math-8"])):
        player.start(number)
        for key in winners:
            complete(player, number, key, 0, 1)
    commands = complete(player, 1, "math-9", 0, 1)
    assert isinstance(commands[-1], EndRound)
    commands = player.start(2)
    assert begun(commands).kind is RoundKind.LONG
    assert launched(commands) == ["math-0", "math-1", "math-10", "math-11"]
    commands = complete(player, 2, "math-1", 0, 0)
    assert (dropped(commands), launched(commands)) == (["math-1"], ["math-12"])


def test_the_queue_takes_at_once_what_the_last_new_prompts_leave_vacant() -> None:
    player = player_of(num_prompts=14, batching="tail")
    player.start(0)
    for key in ("math-0", "math-1", "math-2", "math-3"):
        complete(player, 0, key, 0, 1)
    assert launched(player.start(1)) == [f"math-{number}" for number in range(6, 12)]
    commands: tuple[Command, ...] = ()
    for key in ("math-6", "math-7", "math-8", "math-9", "math-10"):
        for sample in range(2):
            request = RequestId(1, prompt(key), sample)
            player.finish(request)
            commands += player.tell(RewardComputed(request=request, reward=1.0))
    assert len(dropped(commands)) == 5
    assert launched(commands) == [], "one prompt was asked for, and the answer is under way"
    assert launched(player.settle(commands)) == ["math-12", "math-13", "math-4"]


def test_no_more_requests_are_in_flight_than_may_be_and_a_prompt_is_drawn_when_there_is_room_for_it() -> None:
    player = player_of(max_active_requests=5)
    assert launched(player.start(0)) == ["math-0", "math-1"], "two responses each; a fifth request is no whole prompt"
    assert player.num_drawn[Domain("math")] == 2
    player.settle(player.finish(RequestId(0, prompt("math-0"), 0)))
    assert player.num_drawn[Domain("math")] == 3, "3 are in flight, so that there is room for another prompt"


def test_a_response_that_is_given_up_makes_room_for_another_prompt() -> None:
    sampling = DynamicSamplingSettings(max_active_requests=3)
    machine = DynamicSampling(make_settings(batching="tail", environment=RULES, dynamic_sampling=sampling))
    machine.handle(StepStarted(step=0, policy_version=0))
    machine.handle(PromptsDrawn(domain=Domain("math"), prompts=(prompt("math-0"),), is_exhausted=False))
    samples = [RequestId(0, prompt("math-0"), sample) for sample in range(3)]
    for request in samples[:2]:
        spans = (VersionSpan(0, 5),)
        finish = ResponseFinished(request=request, engine=EngineId("engine-0"), num_tokens=5, spans=spans)
        assert machine.handle(finish) == (ScoreResponse(request=request),), "a prompt is 3 responses"
    assert machine.handle(GivenUp(request=samples[2])) == (DrawPrompts(domain=Domain("math"), num_prompts=1),)
    machine.check()


def test_when_the_data_ends_the_last_batch_is_smaller_and_without_any_prompt_the_run_ends() -> None:
    player = player_of(num_prompts=5)
    player.start(0)
    for key in ("math-0", "math-1", "math-2"):
        complete(player, 0, key, 1, 1)
    complete(player, 0, "math-3", 1, 0)
    end = complete(player, 0, "math-4", 1, 0)[-1]
    assert end == EndRound(round=0, step=0, prompts=(prompt("math-3"), prompt("math-4")), long_queue_length=0)
    assert player.start(1) == (EndRun(),)

    player = player_of(num_prompts=1)
    player.start(0)
    assert complete(player, 0, "math-0", 0, 0)[-1] == EndRun()
    assert player.start(0) == (EndRun(),), "a run that is resumed at its end ends again"


def test_a_run_whose_data_has_no_variance_gives_up() -> None:
    player = player_of(max_launch_factor=Fraction(3, 2))
    player.start(0)
    for key in ("math-0", "math-1"):
        assert len(launched(complete(player, 0, key, 0, 0))) == 1
    assert complete(player, 0, "math-2", 0, 0)[-1] == FailRun(
        round=0, num_prompts_launched=6, num_prompts_dropped=3, num_prompts_needed=4
    )


def test_without_overlap_dropped_prompts_are_replaced_together_when_the_whole_batch_is_scored() -> None:
    settings = make_settings(
        batching="plain", num_prompts=2, overlap_rewards=False, dynamic_sampling=DynamicSamplingSettings()
    )
    player = Player(settings)
    player.start(0)
    requests = [RequestId(0, prompt(key), sample) for key in ("math-0", "math-1") for sample in (0, 1)]
    for request in requests[:-1]:
        assert player.finish(request) == ()
    assert player.finish(requests[-1]) == tuple(ScoreResponse(request=request) for request in requests)
    for request in requests[:-1]:
        assert launched(player.settle(player.tell(RewardComputed(request=request, reward=1.0)))) == []
    commands = player.settle(player.tell(RewardComputed(request=requests[-1], reward=1.0)))
    assert launched(commands) == ["math-2", "math-3"]


def test_a_race_of_responses_and_a_limit_below_a_prompts_responses_are_refused() -> None:
    sampling = DynamicSamplingSettings()
    with pytest.raises(ValueError, match="a race of responses"):
        make_settings(dynamic_sampling=sampling, overlap_rewards=False)
    with pytest.raises(ValueError, match="max_active_requests=2 is below 3"):
        make_settings(dynamic_sampling=DynamicSamplingSettings(max_active_requests=2))
