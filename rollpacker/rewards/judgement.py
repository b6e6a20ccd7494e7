"""What a reward is: a module with a pure function `judge`, and the words that every reward may answer.

Invariant: a judgement depends on its four arguments only. So a check may run in any process, in any order, and
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


class Judgement(NamedTuple):
    """The reward of a response, and why."""

    reward: float
    reason: str
    """One of the reward's words, in snake_case."""


class RewardModule(Protocol):
    """A module such as `rollpacker.rewards.math`, imported by name in the process that runs it."""

    def judge(self, prompt_text: str, response_text: str, is_truncated: bool, ground_truth: str) -> Judgement:
        """Judge one response. Raises nothing that it can help; what it raises counts as `checker_crashed`."""

    def prepare(self) -> None:
        """Import and fill caches before the first check, whose time limit must not pay for it."""


CORRECT = Judgement(1.0, "correct")
TRUNCATED = Judgement(0.0, "truncated")
"""The response ended at the length limit, and what there is of it has no answer."""
UNPARSABLE_GROUND_TRUTH = Judgement(0.0, "unparsable_ground_truth")
"""The prompt file is wrong, not the response."""
TIMEOUT = Judgement(0.0, "timeout")
"""The check took too long and was killed."""
CHECKER_CRASHED = Judgement(0.0, "checker_crashed")
"""The process of the check died, or the check raised."""


def verdict_of_crash(request: ScoringRequest, error: Exception) -> Verdict:
    """Give the verdict on a response whose check raised: no response ends a run.

    Raises:
        RollpackerError: The error is one, which no response causes: no process can be started, a file was changed.
    """
    if isinstance(error, RollpackerError):
        raise error
    _log.warning("%s is %s: %s: %s", request.request, CHECKER_CRASHED.reason, type(error).__name__, error)
    return Verdict(request=request.request, reward=CHECKER_CRASHED.reward, reason=CHECKER_CRASHED.reason, time_s=0.0)
