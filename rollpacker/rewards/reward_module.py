"""The interface of a reward module, a pure function `score`, and the scores that every reward shares.

Invariant: a score depends on its four arguments only. So a check may run in any process, in any order, and
again after a kill.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rollpacker.core.errors import RollpackerError
from rollpacker.protocols.rollout import Verdict

if TYPE_CHECKING:
    from rollpacker.protocols.reward import ScoringRequest

_log = logging.getLogger(__name__)


class Score(NamedTuple):
    """The reward of a response, and why."""

    reward: float
    reason: str
    """Why, in snake_case; each reward has its own set."""


class RewardModule(Protocol):
    """A module such as `rollpacker.rewards.math`, imported by name in the process that runs it."""

    def score(self, prompt_text: str, response_text: str, is_truncated: bool, ground_truth: str) -> Score:
        """Score one response. An exception counts as `checker_crashed`."""

    def prepare(self) -> None:
        """Import and fill caches before the first check, whose time limit must not pay for it."""


CORRECT = Score(1.0, "correct")
TRUNCATED = Score(0.0, "truncated")
"""The response ended at the length limit, and what there is of it has no answer."""
UNPARSABLE_GROUND_TRUTH = Score(0.0, "unparsable_ground_truth")
"""The prompt file is wrong, not the response."""
TIMEOUT = Score(0.0, "timeout")
"""The check took too long and was killed."""
CHECKER_CRASHED = Score(0.0, "checker_crashed")
"""The process of the check died, or the check raised."""


def verdict_of(request: ScoringRequest, score: Score, time_s: float = 0.0) -> Verdict:
    """Make the verdict on a request."""
    return Verdict(request=request.request, reward=score.reward, reason=score.reason, time_s=time_s)


def verdict_of_crash(request: ScoringRequest, error: Exception) -> Verdict:
    """Give the verdict on a response whose check raised: no response ends a run.

    Raises:
        RollpackerError: The error is one, which no response causes: no process can be started, a file was changed.
    """
    if isinstance(error, RollpackerError):
        raise error
    _log.warning("%s is %s: %s: %s", request.request, CHECKER_CRASHED.reason, type(error).__name__, error)
    return verdict_of(request, CHECKER_CRASHED)
