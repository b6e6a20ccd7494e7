"""Examples of plain batching."""

from __future__ import annotations

from fractions import Fraction

import pytest

from rollpacker.core.commands import EndRound, EndRun, RoundKind, ScoreResponse
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.ids import Domain, RequestId
from tests.core.player import Player, accepted, begun, launched, make_settings, prompt


def test_a_plain_round_launches_what_it_needs_and_waits_for_all_of_it() -> None:
    player = Player(make_settings(batching="plain"))
    commands = player.start(0)
    assert begun(commands).kind is RoundKind.PLAIN
    assert (begun(commands).num_prompts_launched, begun(commands).num_responses_launched) == (4, 2)
    for key in ("math-3", "math-1", "math-0"):
        assert accepted(player.complete(0, key, 1, 0)) == [key]
    end = player.complete(0, "math-2", 0, 1)[-1]
    assert end == EndRound(round=0, step=0, prompts=tuple(prompt(f"math-{n}") for n in range(4)), long_queue_length=0)


def test_without_overlap_all_responses_are_scored_after_the_last_one() -> None:
    player = Player(make_settings(batching="plain", overlap_rewards=False, num_prompts=2))
    player.start(0)
    requests = [RequestId(0, prompt(key), sample) for key in ("math-0", "math-1") for sample in (0, 1)]
    for request in reversed(requests[1:]):
        assert player.finish(request) == ()
    with pytest.raises(ImpossibleEvent, match="while places of round 0 are open"):
        player.reward(requests[1])
    assert player.finish(requests[0]) == tuple(ScoreResponse(request=request) for request in requests)


def test_the_last_batch_of_finite_data_may_be_smaller() -> None:
    player = Player(make_settings(batching="plain"), num_prompts=5)
    for step, keys in enumerate([["math-0", "math-1", "math-2", "math-3"], ["math-4"]]):
        commands = player.start(step)
        assert launched(commands) == keys
        for key in keys:
            player.complete(step, key, 0, 1)
    assert player.start(2) == (EndRun(),)


def test_the_places_of_a_domain_that_has_ended_go_to_the_others() -> None:
    domains = tuple((Domain(name), Fraction(1)) for name in ("math", "code", "judge"))
    player = Player(make_settings(batching="plain", num_prompts=6, domain_weights=domains))
    player.num_left[Domain("code")] = 0
    keys = launched(player.start(0))
    assert sorted(keys) == ["judge-0", "judge-1", "judge-2", "math-0", "math-1", "math-2"]
