from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from rollpacker.trainers.advantages import batch_advantages, group_advantages


def test_group_std_divides_the_distance_from_the_mean_by_the_unbiased_standard_deviation():
    # mean 0.5, squared distances 4 * 0.25, variance 1 / 3
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    assert group_advantages((1, 0, 0, 1), "group_std") == pytest.approx([expected, -expected, -expected, expected])


def test_group_mean_is_the_distance_from_the_mean():
    assert group_advantages((1, 0, 0, 0), "group_mean") == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_rloo_is_the_distance_from_the_mean_of_the_others():
    assert group_advantages((1, 0, 0.5), "rloo") == pytest.approx([1 - 0.25, 0 - 0.75, 0.5 - 0.5])


@pytest.mark.parametrize("kind", ["group_std", "group_mean", "rloo"])
@pytest.mark.parametrize("rewards", [(0, 0), (1, 1, 1), (0.1, 0.1, 0.1), (-3.7,) * 7, (0.3,)])
def test_equal_rewards_give_exactly_zero(kind: str, rewards: tuple[float, ...]):
    # The mean of three times 0.1 is another float than 0.1: zero does not come by itself.
    advantages = group_advantages(rewards, kind)
    assert advantages.tolist() == [0.0] * len(rewards)


def test_adding_a_constant_to_all_rewards_changes_no_advantage():
    assert group_advantages((5, 7, 9), "group_std") == pytest.approx(group_advantages((0, 2, 4), "group_std"))


def test_advantages_are_float32_like_the_loss():
    assert group_advantages((0, 1), "group_std").dtype == np.float32


REWARDS = [(1.0, 0.0, 0.5), (2.0, 2.0), (0.0, 1.0)]
TOKENS = [(3, 1, 2), (5, 1), (2, 7)]


def test_batch_std_divides_the_distance_from_the_groups_mean_by_the_standard_deviation_of_all_rewards():
    scale = statistics.stdev([reward for group in REWARDS for reward in group])
    for rewards, found in zip(REWARDS, batch_advantages(REWARDS, TOKENS, "batch_std"), strict=True):
        expected = [(reward - statistics.mean(rewards)) / scale for reward in rewards]
        assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", ["reinforce_pp", "reinforce_pp_baseline"])
def test_reinforce_plus_plus_is_whitened_over_the_tokens_of_the_batch(kind):
    baselines = [statistics.mean(group) if kind == "reinforce_pp_baseline" else 0.0 for group in REWARDS]
    returns = [[reward - less for reward in group] for group, less in zip(REWARDS, baselines, strict=True)]
    per_token = [
        value
        for values, lengths in zip(returns, TOKENS, strict=True)
        for value, length in zip(values, lengths, strict=True)
        for _ in range(length)
    ]
    mean, scale = statistics.mean(per_token), statistics.stdev(per_token)
    for values, found in zip(returns, batch_advantages(REWARDS, TOKENS, kind), strict=True):
        assert found == pytest.approx([(value - mean) / scale for value in values], rel=1e-5)
        assert found.dtype == np.float32


@pytest.mark.parametrize("kind", ["batch_std", "reinforce_pp", "reinforce_pp_baseline"])
@pytest.mark.parametrize(("rewards", "tokens"), [([(0.1, 0.1, 0.1), (0.1,)], [(3, 1, 4), (1,)]), ([(7.0,)], [(1,)])])
def test_a_batch_of_equal_rewards_gives_exactly_zero(kind, rewards, tokens):
    found = batch_advantages(rewards, tokens, kind)
    assert [len(group) for group in found] == [len(group) for group in rewards]
    assert all(value == 0 and math.isfinite(value) for group in found for value in group)
