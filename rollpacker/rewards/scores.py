"""Scores that every reward shares, and the verdicts made of them."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, NamedTuple

from rollpacker.core.errors import RollpackerError
from rollpacker.protocols.rollout import Verdict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rollpacker.protocols.reward import ScoringRequest

_log = logging.getLogger(__name__)


class Score(NamedTuple):
    """The reward of a response, and why."""

    reward: float
    reason: str
    """Why, in snake_case; each reward has its own set."""


CORRECT = Score(1.0, "correct")
TRUNCATED = Score(0.0, "truncated")
"""The response ended at the length limit, and what there is of it has no answer."""
UNPARSABLE_GROUND_TRUTH = Score(0.0, "unparsable_ground_truth")
"""The prompt file is wrong, not the response."""
TIMEOUT = Score(0.0, "timeout")
"""The check took too long and was killed."""
CHECKER_CRASHED = Score(0.0, "checker_crashed")
"""The process of the check died, or the check raised."""
WRONG_RESULT = Score(0.0, "wrong_result")
"""What the check returned is no score."""
NOT_FINITE = Score(0.0, "not_finite")
"""The check returned NaN, or a number too large to train with."""
HTTP_ERROR = Score(0.0, "http_error")
"""The server answered with an error."""

FAILURES = frozenset(each.reason for each in (TIMEOUT, CHECKER_CRASHED, WRONG_RESULT, NOT_FINITE, HTTP_ERROR))
"""Reasons that say something of the check, and nothing of the response."""


def has_failed(verdict: Verdict) -> bool:
    """Whether the check failed; a program that exceeds its time limit in the sandbox is the response's failure."""
    return verdict.reason in FAILURES and not (verdict.reason == TIMEOUT.reason and verdict.case_runs)


def verdict_of(
    request: ScoringRequest, score: Score, time_s: float = 0.0, parts: Mapping[str, float] | None = None
) -> Verdict:
    """Make the verdict on a request."""
    return Verdict(
        request=request.request, reward=score.reward, reason=score.reason, time_s=time_s, parts=dict(parts or {})
    )


def verdict_of_crash(request: ScoringRequest, error: Exception) -> Verdict:
    """Give the verdict on a response whose check raised: no response ends a run.

    Raises:
        RollpackerError: The error is one, which no response causes: no process can be started, a file was changed.
    """
    if isinstance(error, RollpackerError):
        raise error
    _log.warning("%s is %s: %s: %s", request.request, CHECKER_CRASHED.reason, type(error).__name__, error)
    return verdict_of(request, CHECKER_CRASHED)


def mean_parts(verdicts: Iterable[Verdict]) -> dict[str, float]:
    """The mean of each part over the verdicts that have it, by the part's name."""
    values: dict[str, list[float]] = {}
    for verdict in verdicts:
        for name, value in verdict.parts.items():
            values.setdefault(name, []).append(value)
    return {name: math.fsum(each) / len(each) for name, each in values.items()}
