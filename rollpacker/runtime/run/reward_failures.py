"""What a person is told of checks that fail: a response whose check failed gets 0 for it, which says nothing of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rollpacker.rewards.scores import has_failed
from rollpacker.runtime.run.failure_news import FailureNews

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.protocols.rollout import Verdict


class RewardFailures:
    """Describes failed checks where they are news."""

    def __init__(self) -> None:
        self._news = FailureNews()

    def describe(self, where: str, verdicts: Iterable[Verdict]) -> str:
        """Give what is to be shown of the verdicts of a step or an evaluation; empty where that is nothing."""
        scored = list(verdicts)
        reasons = Counter(verdict.reason for verdict in scored if has_failed(verdict))
        num_failed = reasons.total()
        if not self._news.has(num_failed / max(len(scored), 1), reasons):
            return ""
        counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        return (
            f"{num_failed} of {len(scored)} rewards of {where} failed: {counts}. Such a reward is 0, or its part is, "
            "whatever the response is. Read why in reward.log below run.dir/logs."
        )
