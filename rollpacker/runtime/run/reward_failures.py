"""What a person is told of checks that fail: a response whose check failed gets 0, which says nothing of it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rollpacker.rewards.scores import has_failed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.protocols.rollout import Verdict

_GROWTH = 4
"""Few notes in a run of any length: a share grows from one response of a thousand to all of them in five."""


class RewardFailures:
    """Describes failed checks when a reason is new, or the share that fails `_GROWTH` times what was described."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._share = 0.0

    def describe(self, where: str, verdicts: Iterable[Verdict]) -> str:
        """Give what is to be shown of the verdicts of a step or an evaluation; empty where that is nothing."""
        scored = list(verdicts)
        reasons = Counter(verdict.reason for verdict in scored if has_failed(verdict))
        num_failed = reasons.total()
        share = num_failed / max(len(scored), 1)
        if reasons.keys() <= self._reasons and (not num_failed or share < _GROWTH * self._share):
            return ""
        self._reasons |= reasons.keys()
        self._share = max(self._share, share)
        counts = ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
        return (
            f"{num_failed} of {len(scored)} rewards of {where} failed: {counts}. A check that fails gives 0, whatever "
            "the response is. Read why in reward.log below run.dir/logs."
        )
