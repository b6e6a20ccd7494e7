"""The reward from the probabilities of a judge's first token.

    p = P(yes) / (P(yes) + P(no))       each the sum over the words for it

With `verdict` the reward is 1 where p reaches the threshold, else 0: at a half, what the likelier word says, which is
the paper's one-token verdict. With `graded` it is p.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed
from rollpacker.rewards.scores import Score

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.config.sections.judge import JudgeSection

NO_VERDICT = Score(0.0, "no_verdict")
"""Neither yes nor no is likely; the template may not suit the judge."""


def score_of(section: JudgeSection, logprobs: Sequence[float]) -> Score:
    """Score by the log-probabilities of the words for yes, followed by those for no.

    Raises:
        EngineFailed: One of them is no log-probability.
    """
    if any(math.isnan(logprob) or logprob > _ROUNDING for logprob in logprobs):
        raise EngineFailed(
            f"The judge's log-probabilities are {[round(logprob, 3) for logprob in logprobs]}.",
            "They are at most 0.",
            "Its weights may be broken, or too large for their precision: try reward.judge.model.dtype=float32.",
        )
    num_yes = len(section.yes)
    yes, no = (sum(map(math.exp, part)) for part in (logprobs[:num_yes], logprobs[num_yes:]))
    if yes + no < section.min_mass or yes + no == 0:
        return NO_VERDICT
    p = yes / (yes + no)
    is_right = p >= section.threshold
    reason = "judged_right" if is_right else "judged_wrong"
    return Score(float(is_right) if section.reward == "verdict" else p, reason)


_ROUNDING = 1e-3
"""A certain token's log-probability may come out above 0 by so much."""
