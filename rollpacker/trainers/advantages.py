"""Turns the rewards of one group into advantages.

Invariant: an advantage depends on the rewards of its own group and on nothing else of the batch, so that groups may be
trained in any split (paper, section 4.4). Source: GRPO (arXiv 2402.03300, section 4.1) with the group's standard
deviation, Dr. GRPO (arXiv 2503.20783) without.

Shapes: R responses of one prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

STD_EPSILON = 1e-6
"""Added to a group's standard deviation. Far below that of any two distinct rewards of practical size, so it only
keeps rewards that differ by rounding from being blown up to unit size."""


def group_advantages(rewards_R: Sequence[float], kind: Literal["group_std", "group_mean"]) -> npt.NDArray[np.float32]:
    """Return one advantage per response, shape [R].

    `group_mean` is the reward minus the group's mean. `group_std` divides that by the group's standard deviation
    (the unbiased one, as TRL and verl do) plus `STD_EPSILON`. Equal rewards give exactly 0, also where the mean of
    equal floats rounds to another float.
    """
    rewards: npt.NDArray[np.float64] = np.asarray(rewards_R, dtype=np.float64)
    if (rewards == rewards[0]).all():
        return np.zeros(len(rewards), dtype=np.float32)
    centred: npt.NDArray[np.float64] = rewards - rewards.mean()
    if kind == "group_std":
        centred = centred / (rewards.std(ddof=1) + STD_EPSILON)
    return centred.astype(np.float32)
