"""Turns rewards into advantages.

Of `STREAMED_ADVANTAGES` an advantage depends on the rewards of its own group and on nothing else of the batch, so that
groups may be trained in any split (RollPacker, section 4.4); `BATCH_ADVANTAGES` need the whole batch.

Sources: `group_std` GRPO (arXiv 2402.03300, section 4.1), `group_mean` Dr. GRPO (arXiv 2503.20783), `rloo` (arXiv
2402.14740), `batch_std` Lite PPO (arXiv 2508.08221), `reinforce_pp` and `reinforce_pp_baseline` REINFORCE++ (arXiv
2501.03262), which is an average over tokens: a long response counts more in its mean and its variance.

Shapes: R responses of one prompt, S responses of the batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

STD_EPSILON = 1e-6
"""Added to a standard deviation. Far below that of any two distinct rewards of practical size, so it only keeps rewards
that differ by rounding from being blown up to unit size."""


def group_advantages(rewards_R: Sequence[float], kind: str) -> npt.NDArray[np.float32]:
    """Return one advantage per response, shape [R].

    `group_mean` is the reward minus the group's mean. `group_std` divides that by the group's standard deviation
    (the unbiased one, as TRL and verl do) plus `STD_EPSILON`. `rloo` is the reward minus the mean of the others'. Equal
    rewards give exactly 0, also where the mean of equal floats rounds to another float.
    """
    rewards: Numbers = np.asarray(rewards_R, dtype=np.float64)
    if (rewards == rewards[0]).all():
        return np.zeros(len(rewards), dtype=np.float32)
    centred: Numbers = rewards - rewards.mean()
    if kind == "group_std":
        centred = centred / (rewards.std(ddof=1) + STD_EPSILON)
    elif kind == "rloo":
        centred = centred * (len(rewards) / (len(rewards) - 1))
    return centred.astype(np.float32)


def batch_advantages(
    rewards: Sequence[Sequence[float]], num_tokens: Sequence[Sequence[int]], kind: str
) -> list[npt.NDArray[np.float32]]:
    """Return one advantage per response, by group.

    `batch_std` is the reward minus its group's mean, divided by the standard deviation of all rewards plus
    `STD_EPSILON`. `reinforce_pp` is the reward, and `reinforce_pp_baseline` the reward minus its group's mean, less its
    mean over all tokens and divided by its standard deviation over them plus `STD_EPSILON`.

    Args:
        rewards: By group.
        num_tokens: Of the same responses.
        kind: One of `BATCH_ADVANTAGES`.
    """
    raw_S = np.concatenate([np.asarray(of_group, dtype=np.float64) for of_group in rewards])
    centred_S = np.concatenate([group_advantages(of_group, "group_mean").astype(np.float64) for of_group in rewards])
    if kind == "batch_std":
        found_S = centred_S / (_std(raw_S, np.ones(len(raw_S))) + STD_EPSILON)
    else:
        returns_S = raw_S if kind == "reinforce_pp" else centred_S
        weights_S = np.concatenate([np.asarray(of_group, dtype=np.float64) for of_group in num_tokens])
        found_S = returns_S - np.average(returns_S, weights=weights_S)
        found_S /= _std(returns_S, weights_S) + STD_EPSILON
        if (returns_S == returns_S[0]).all():
            found_S[:] = 0.0  # whatever its mean rounds to
    bounds = np.cumsum([len(of_group) for of_group in rewards])[:-1]
    return np.split(found_S.astype(np.float32), bounds)


def _std(values_S: Numbers, weights_S: Numbers) -> float:
    """Return the unbiased standard deviation of values that occur so many times; 0 of one."""
    deviations_S = values_S - np.average(values_S, weights=weights_S)
    return float(np.sqrt((weights_S * deviations_S**2).sum() / max(weights_S.sum() - 1, 1)))
