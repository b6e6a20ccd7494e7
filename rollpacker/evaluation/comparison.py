"""Two evaluations of the same held-out samples, compared pair by pair."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rollpacker.evaluation.statistics import Estimate, mean_difference

if TYPE_CHECKING:
    from collections.abc import Iterable

Rewards = Mapping[tuple[str, int], float]
"""Of a set, by the prompt's id in its file and the sample."""

ROUNDING = 1e-9
"""Means that differ by less are equal: rounding leaves about 1e-16 of rewards near 1, and rewards differ by more."""


def rewards_by_set(rows: Iterable[Mapping[str, Any]]) -> dict[str, Rewards]:
    """Collect the rewards of each set from rows of `evaluation_responses` that are of one evaluation."""
    rewards: dict[str, dict[tuple[str, int], float]] = {}
    for row in rows:
        rewards.setdefault(row["set"], {})[row["prompt"], row["sample"]] = row["reward"]
    return dict(rewards)


def paired_difference(rewards: Rewards, others: Rewards) -> Estimate | None:
    """How much better the first ones are; None where the samples are not the same."""
    if rewards.keys() != others.keys():
        return None
    theirs = _by_prompt(others)
    mine = _by_prompt(rewards)
    return mean_difference([*mine.values()], [theirs[prompt] for prompt in mine])


def differences_by_prompt(rewards: Rewards, others: Rewards) -> dict[str, float]:
    """By how much the mean of each prompt's samples, which are the same in both, is better in the first ones.

    Means that differ by rounding alone differ by 0.
    """
    theirs = {prompt: fmean(of_prompt) for prompt, of_prompt in _by_prompt(others).items()}
    mine = {prompt: fmean(of_prompt) for prompt, of_prompt in _by_prompt(rewards).items()}
    return {
        prompt: 0.0 if math.isclose(mean, theirs[prompt], abs_tol=ROUNDING) else mean - theirs[prompt]
        for prompt, mean in mine.items()
    }


def _by_prompt(rewards: Rewards) -> dict[str, list[float]]:
    """The rewards of each prompt, by sample."""
    by_prompt: dict[str, list[float]] = {}
    for (prompt, _), reward in sorted(rewards.items()):
        by_prompt.setdefault(prompt, []).append(reward)
    return by_prompt
