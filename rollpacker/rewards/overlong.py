"""Over-long reward shaping: a response that comes near the length limit loses some of its reward.

    unshaped reward  -  penalty * (how far the length is into the last `buffer_tokens` below the limit, 0 to 1)

Invariant: the unshaped reward is kept and recorded beside it; dynamic sampling uses the unshaped reward, advantages
the shaped one. A response at the limit loses the whole penalty, one that ends before the buffer nothing.

Source: DAPO (arXiv 2503.14476), section 3.4 and equation 13, with L_max = `rollout.max_response_tokens` and L_cache =
`reward.overlong_buffer_tokens`; verl's DAPO reward manager (`overlong_buffer.len`, `overlong_buffer.penalty_factor`),
whose recipe filters groups by `acc`, the reward before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class OverlongPunishment:
    """What a length takes off the reward."""

    max_response_tokens: int
    buffer_tokens: int | None
    """None punishes nothing."""
    penalty: float

    @classmethod
    def of(cls, config: RunConfig) -> Self:
        """Take a run's."""
        return cls(
            max_response_tokens=config.rollout.max_response_tokens,
            buffer_tokens=config.reward.overlong_buffer_tokens,
            penalty=config.reward.overlong_penalty,
        )

    def shape(self, reward: float, num_tokens: int) -> float:
        """Give the reward that a response of so many tokens is trained with."""
        if self.buffer_tokens is None:
            return reward
        num_excess = num_tokens - (self.max_response_tokens - self.buffer_tokens)
        return reward - self.penalty * max(0, num_excess) / self.buffer_tokens


NO_PUNISHMENT = OverlongPunishment(max_response_tokens=1, buffer_tokens=None, penalty=1.0)
