"""Two evaluations of the same held-out samples, compared pair by pair."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rollpacker.evaluation.statistics import Estimate, mean_difference

if TYPE_CHECKING:
    from collections.abc import Iterable

Rewards = Mapping[tuple[str, int], float]
"""Of a set, by the key of the held-out prompt (`set/id`) and the sample."""


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


def _by_prompt(rewards: Rewards) -> dict[str, list[float]]:
    """The rewards of each prompt, by sample."""
    by_prompt: dict[str, list[float]] = {}
    for (prompt, _), reward in sorted(rewards.items()):
        by_prompt.setdefault(prompt, []).append(reward)
    return by_prompt
