"""What a reward is: a module with a pure function `judge`, and the words that every reward may answer.

Invariant: a judgement depends on its four arguments only. So a check may run in any process, in any order, and
again after a kill.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol


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
