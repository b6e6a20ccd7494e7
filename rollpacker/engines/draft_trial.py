"""Whether an engine that verifies draft tokens draws from its policy: a trial, before it is trained on what it draws.

Responses are drawn with drafts, then read again by a pass without any, as prompts, which gives the policy's likeliest
tokens behind each of their tokens. The test is that of surprisal against entropy (`rollpacker.trainers.surprisal`,
whose z this is) with what N likeliest tokens tell: the surprisal of every other token counts as that of the last of the
N, and so the expectation and the variance of the result are known exactly:

    f(i) = -log p_i for the N likeliest tokens, c = -log p_N for the others, of probability r together
    E f = sum of p_i f(i) + r c

The engine's own log-probabilities of the responses are not used: an engine may draw from a wrong distribution and state
it rightly.

Shapes: T tokens, N likeliest tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollpacker.core.errors import WrongSampling

if TYPE_CHECKING:
    import numpy.typing as npt

LARGEST_Z = 8.0
"""An engine that draws rightly exceeds it once in 10^15 trials; wrong ones were at hundreds."""

LEAST_GAP_NATS = 0.05
"""A smaller difference of means is left to rounding: drafts are verified by other kernels than prompts are read by."""

FEWEST_DRAFTED = 256
"""Draft tokens that a trial has to verify to prove anything: 12 in 12,885 tokens hid an engine that was wrong."""


class Trial(NamedTuple):
    """What came of it."""

    num_tokens: int
    num_drafted: int
    num_accepted: int
    gap_nats: float
    """Mean surprisal less its expectation."""
    z: float
    """The same in standard deviations."""


def judge_draws(
    logprobs_T: npt.NDArray[np.float64], likeliest_TN: npt.NDArray[np.float64], num_drafted: int, num_accepted: int
) -> Trial:
    """Compare what was drawn with the policy.

    Args:
        logprobs_T: Of the drawn tokens, by the policy.
        likeliest_TN: Of the likeliest tokens at each position, descending.
        num_drafted: Draft tokens verified while they were drawn.
        num_accepted: Of these.
    """
    others_T = -likeliest_TN[:, -1]
    probabilities_TN = np.exp(likeliest_TN)
    rest_T = np.clip(1 - probabilities_TN.sum(axis=1), 0, None)
    mean_T = -(probabilities_TN * likeliest_TN).sum(axis=1) + rest_T * others_T
    square_T = (probabilities_TN * likeliest_TN**2).sum(axis=1) + rest_T * others_T**2
    gaps_T = np.minimum(-logprobs_T, others_T) - mean_T
    scale = math.sqrt(((gaps_T**2).sum() + 2 * (square_T - mean_T**2).sum()) / 3)
    total = float(gaps_T.sum())
    return Trial(len(gaps_T), num_drafted, num_accepted, total / len(gaps_T), total / scale if scale else 0.0)


def require_lossless(trial: Trial, method: str, platform: str) -> None:
    """Refuse drafts that change what is drawn.

    Raises:
        WrongSampling: They do.
    """
    if abs(trial.gap_nats) >= LEAST_GAP_NATS and abs(trial.z) > LARGEST_Z:
        raise WrongSampling(
            f"With draft tokens of method {method}, {platform} does not draw from the policy: over {trial.num_tokens} "
            f"tokens, {trial.num_drafted} of them drafted, the mean surprisal is {trial.gap_nats:+.3g} nats off what "
            f"the policy expects (z = {trial.z:.0f}).",
            f"|z| is at most {LARGEST_Z:g}: drafts may change how fast responses come, and not which.",
            "Set system.speculative_decoding=false, another engine.vllm.drafter, or engine=torch.",
        )
