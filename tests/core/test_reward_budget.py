"""Examples of the reward budget."""

from __future__ import annotations

from rollpacker.core.commands import ScoreResponse
from rollpacker.core.events import CaseRun, RewardComputed
from rollpacker.core.ids import RequestId
from rollpacker.core.settings import RewardBudgetSettings
from tests.core.player import Player, make_settings, prompt


def request(sample: int, round_number: int = 0) -> RequestId:
    return RequestId(round_number, prompt("math-0"), sample)


def test_a_limit_is_half_as_long_again_as_the_longest_run_that_passed() -> None:
    player = Player(make_settings(reward_budget=RewardBudgetSettings()))
    player.start(0)
    assert player.finish(request(0)) == (ScoreResponse(request=request(0), case_limits_s=(30.0,)),)
    runs = (CaseRun(0, 0.25, True), CaseRun(2, 4.0, True), CaseRun(1, 29.0, False))  # the second case was not passed
    player.tell(RewardComputed(request=request(0), reward=1.0, case_runs=runs))
    assert player.finish(request(1)) == (ScoreResponse(request=request(1), case_limits_s=(2.0, 30.0, 6.0, 30.0)),)


def test_no_limit_is_above_the_largest() -> None:
    player = Player(make_settings(reward_budget=RewardBudgetSettings()))
    player.start(0)
    player.finish(request(0))
    player.tell(RewardComputed(request=request(0), reward=1.0, case_runs=(CaseRun(0, 25.0, True),)))
    assert player.finish(request(1)) == (ScoreResponse(request=request(1), case_limits_s=(30.0, 30.0)),)


def test_a_late_reward_teaches_too_because_slow_programs_are_late() -> None:
    player = Player(make_settings(reward_budget=RewardBudgetSettings(), num_responses=1, eta_responses=3))
    player.start(0)
    for sample in range(2):
        player.finish(request(sample))
    for sample, time_s in ((0, 2.0), (1, 8.0)):
        player.tell(RewardComputed(request=request(sample), reward=1.0, case_runs=(CaseRun(0, time_s, True),)))
    assert player.scheduler.snapshot()["reward_budget"] == {"anchors": {"math-0": [8.0]}}
