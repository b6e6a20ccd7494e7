"""Scores of held-out responses, and how far to trust them.

P prompts have n responses each, whose rewards are r[p, i]. Two standard errors go by two names, because they answer two
questions:

* `given_prompts`: how far the score would move with other samples of the same prompts. It compares two checkpoints on
  this set. se^2 = sum over p of s_p^2 / n / P^2, with s_p^2 the variance among a prompt's n responses.
* `over_prompts`: how far it would move with other prompts of the same kind. It says what the score means beyond this
  set. se^2 = s^2 / P, with s^2 the variance among the P means of the prompts, which carry the first error already:
  responses to one prompt are no independent witnesses, so they are clustered (Miller, "Adding Error Bars to Evals",
  2024, section 2.2).

The seed of a sample is the same in both of two evaluations, so that they are compared pair by pair: the error is that
of the differences r[p, i] - r'[p, i], by the same two formulas (the same, section 4.2).

pass@k is the chance that at least one of k responses passes. With c of a prompt's n responses passing, the estimate
1 - C(n - c, k) / C(n, k) is unbiased, which 1 - (1 - c / n)^k is not (Chen et al., "Evaluating Large Language Models
Trained on Code", 2021, section 2.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, variance
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Rewards = Sequence[Sequence[float]]
    """One sequence per prompt, of its samples in their order; none is empty, all are equally long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A mean and its two standard errors."""

    value: float
    se_given_prompts: float | None
    """None with one response to a prompt: nothing says how much another one would differ."""
    se_over_prompts: float | None
    """None with one prompt."""


def mean_reward(rewards: Rewards) -> Estimate:
    """avg@n: every prompt counts the same."""
    means = [fmean(of_prompt) for of_prompt in rewards]
    given = None
    if min(map(len, rewards)) > 1:
        given = math.sqrt(math.fsum(variance(of_prompt) / len(of_prompt) for of_prompt in rewards)) / len(rewards)
    return Estimate(value=fmean(means), se_given_prompts=given, se_over_prompts=_error_of_mean(means))


def mean_difference(rewards: Rewards, others: Rewards) -> Estimate:
    """How much better the first is: the same prompts and samples, in the same order."""
    return mean_reward(
        [
            [reward - other for reward, other in zip(of_prompt, of_other, strict=True)]
            for of_prompt, of_other in zip(rewards, others, strict=True)
        ]
    )


def pass_at(k: int, num_passed: Sequence[int], num_samples: int) -> tuple[float, float | None]:
    """pass@k over prompts, and its error over prompts (None with one prompt).

    Args:
        k: From 1 to `num_samples`.
        num_passed: Of each prompt's responses.
        num_samples: Responses to each prompt.
    """
    each = [1 - math.comb(num_samples - passed, k) / math.comb(num_samples, k) for passed in num_passed]
    return fmean(each), _error_of_mean(each)


def quantile(ascending: Sequence[int], percent: int) -> int:
    """The smallest value that so many percent do not exceed (nearest rank)."""
    return ascending[-(-len(ascending) * percent // 100) - 1]


def _error_of_mean(values: Sequence[float]) -> float | None:
    return math.sqrt(variance(values) / len(values)) if len(values) > 1 else None
