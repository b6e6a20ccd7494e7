"""How many prompts dynamic sampling is to drop in a modelled run, by theory."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Final

_NUM_POINTS: Final = 1000
"""Difficulties of prompts that the mean is taken over."""


def share_without_variance(solve_rate: float, rho: float, num_responses: int) -> float:
    """Compute the share of prompts whose rewards are all equal, by the workload's copula; nothing is cut.

    Args:
        solve_rate: Share of right responses, 0 to 1.
        rho: Correlation of a prompt's responses, 0 to below 1.
        num_responses: Of each prompt.
    """
    if not 0 < solve_rate < 1:
        return 1.0
    normal = NormalDist()
    threshold = normal.inv_cdf(solve_rate)
    points = [(index + 0.5) / _NUM_POINTS for index in range(_NUM_POINTS)]
    rates = [normal.cdf((threshold - math.sqrt(rho) * normal.inv_cdf(point)) / math.sqrt(1 - rho)) for point in points]
    return sum(rate**num_responses + (1 - rate) ** num_responses for rate in rates) / _NUM_POINTS
