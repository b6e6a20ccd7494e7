from __future__ import annotations

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError
from rollpacker.rewards.overlong import OverlongPunishment


@pytest.mark.parametrize(("num_tokens", "reward"), [(1, 1.0), (80, 1.0), (81, 0.9), (90, 0.0), (95, -0.5), (100, -1.0)])
def test_a_reward_falls_linearly_over_the_buffer_below_the_limit(num_tokens: int, reward: float) -> None:
    punishment = OverlongPunishment(max_response_tokens=100, buffer_tokens=20, penalty=2.0)
    assert punishment.shape(1.0, num_tokens) == pytest.approx(reward)


def test_a_buffer_longer_than_the_limit_is_refused() -> None:
    words = ["model.path=m", "data.path=p.jsonl", "run.dir=x", "rollout.max_response_tokens=100"]
    assert OverlongPunishment.of(compose([*words, "reward.overlong_buffer_tokens=100"])).shape(1.0, 100) == 0
    with pytest.raises(ConfigError, match="overlong_buffer_tokens=101 with"):
        compose([*words, "reward.overlong_buffer_tokens=101"])
