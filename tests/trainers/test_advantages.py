from __future__ import annotations

import numpy as np
import pytest

from rollpacker.trainers.advantages import group_advantages


def test_group_std_divides_the_distance_from_the_mean_by_the_unbiased_standard_deviation():
    # mean 0.5, squared distances 4 * 0.25, variance 1 / 3
    expected = 0.5 / (np.sqrt(1 / 3) + 1e-6)
    assert group_advantages((1, 0, 0, 1), "group_std") == pytest.approx([expected, -expected, -expected, expected])


def test_group_mean_is_the_distance_from_the_mean():
    assert group_advantages((1, 0, 0, 0), "group_mean") == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("kind", ["group_std", "group_mean"])
@pytest.mark.parametrize("rewards", [(0, 0), (1, 1, 1), (0.1, 0.1, 0.1), (-3.7,) * 7, (0.3,)])
def test_equal_rewards_give_exactly_zero(kind: str, rewards: tuple[float, ...]):
    # The mean of three times 0.1 is another float than 0.1: zero does not come by itself.
    advantages = group_advantages(rewards, kind)
    assert advantages.tolist() == [0.0] * len(rewards)


def test_adding_a_constant_to_all_rewards_changes_no_advantage():
    assert group_advantages((5, 7, 9), "group_std") == pytest.approx(group_advantages((0, 2, 4), "group_std"))


def test_advantages_are_float32_like_the_loss():
    assert group_advantages((0, 1), "group_std").dtype == np.float32
