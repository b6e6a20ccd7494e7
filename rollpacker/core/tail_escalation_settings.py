"""What `core.tail_escalation` is told before a run begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rollpacker.core.bounds import require


@dataclass(frozen=True, slots=True, kw_only=True)
class TailEscalationSettings:
    """When the rest of a round goes on with engines of the largest degree (`core.tail_escalation`)."""

    max_response_tokens: int
    """Where every response is cut off: what is expected of one that is longer than all seen lately."""
    gpus: tuple[tuple[int, ...], ...] = ()
    """Of each engine of the largest degree; empty where they are unknown, and none is ever lent."""
    first_share: Fraction = Fraction(1, 2)
    """Of the launched responses are in flight at the first test at most."""
    step_share: Fraction = Fraction(3, 4)
    """Of those at one test are in flight at the next at most."""
    first_cost_s: float = 10.0
    """Of a change before one was measured. Not below what sleeping and waking takes, so that a change which would gain
    a second is not tried."""
    num_recent_lengths: int = 2048
    """Finished responses of a kind of round that expectations are made of; two batches of 128 x 8."""

    def __post_init__(self) -> None:
        are_shares = 0 < self.first_share <= 1 and 0 < self.step_share < 1
        has_counts = self.max_response_tokens >= 1 and self.num_recent_lengths >= 1
        is_possible = are_shares and has_counts and 0 <= self.first_cost_s < math.inf
        require(is_possible, f"{self}: shares are above 0 and at most 1, step_share below it; counts are at least 1")
