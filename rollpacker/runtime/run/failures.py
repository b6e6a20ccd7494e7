"""What a person who follows a run is told of failures: few notes in a run of any length.

A response whose check failed gets 0 for it, which says nothing of the response.

An environment leaves no response where it fails, or its first observation fills the limit of tokens: prompts leave the
batch for it, held-out ones score 0. Of training only failures are written down, so that an observation is known to be
too long where more responses were given up than environments failed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from rollpacker.config.words import counted
from rollpacker.core.environments import LOST, NO_TURN, TIMEOUT
from rollpacker.rewards.scores import has_failed
from rollpacker.runtime.rollout.episodes import ENVIRONMENT_ACTOR

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.protocols.rollout import Verdict
    from rollpacker.runtime.rollout.batch import Batch
    from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord

ENVIRONMENT_FAILURES: Final = frozenset({"environment_error", "environment_crashed", TIMEOUT, LOST})
"""How a call or a trajectory ends whose environment failed: as `environments.pool` and the scheduler name it."""

_WHY = (
    "Read why in the lines `The environment of ... failed` that a real run prints, or, with environment.nodes=all or "
    "nodes of their own, in logs/attempt-*/environments-*.log."
)

_GROWTH = 4
"""A share grows from one of a thousand to all of them in five notes."""


class RewardFailures:
    """Describes failed checks where they are news."""

    def __init__(self) -> None:
        self._news = _News()

    def describe(self, where: str, verdicts: Iterable[Verdict]) -> str:
        """Give what is to be shown of the verdicts of a step or an evaluation; empty where that is nothing."""
        scored = list(verdicts)
        reasons = Counter(verdict.reason for verdict in scored if has_failed(verdict))
        num_failed = reasons.total()
        if not self._news.has(num_failed / max(len(scored), 1), reasons):
            return ""
        return (
            f"{num_failed} of {len(scored)} rewards of {where} failed: {_listed(reasons)}. Such a reward is 0, or its "
            "part is, whatever the response is. Read why in reward.log below run.dir/logs."
        )


class EnvironmentFailures:
    """Describes failed environments where they, or what training or a score lost by them, are news."""

    def __init__(self) -> None:
        self._failures, self._dropped = _News(), _News()
        self._held_out, self._held_out_too_long = _News(), _News()

    def of_step(self, where: str, batch: Batch) -> str:
        """Give what is to be shown of a step; empty where that is nothing."""
        reasons = Counter(stay.activity for stay in batch.book.stays if stay.activity in ENVIRONMENT_FAILURES)
        num_failures, num_dropped = reasons.total(), _num_dropped(batch)
        num_attempts = num_failures + len(batch.requests)
        are_news = (
            self._failures.has(num_failures / max(num_attempts, 1), reasons),
            self._dropped.has(num_dropped / max(num_dropped + len(batch.accepted), 1)),
        )
        num_too_long = max(0, batch.book.num_given_up - num_failures)  # at least: a failure may have led to a restart
        if not any(are_news) or not num_failures + num_too_long:
            return ""
        head, why = f"Environments failed {counted(num_failures, 'time')} in {where} ({_listed(reasons)})", _WHY
        if not reasons:
            head, why = f"First observations of {where} fill rollout.max_response_tokens", "Raise it."
        elif num_too_long:
            of_these = f"{counted(num_too_long, 'response')} or more of those given up"
            why += f" First observations of {of_these} fill rollout.max_response_tokens. Raise it."
        return f"{': '.join(filter(None, (head, _came_of(batch, num_dropped))))}. {why}"

    def of_evaluation(self, where: str, record: EvaluationRecord) -> str:
        """Give what is to be shown of an evaluation; empty where that is nothing."""
        verdicts = [request.verdict for request in record.requests.values() if request.verdict]
        ends = Counter(verdict.reason for verdict in verdicts if verdict.scorer == ENVIRONMENT_ACTOR)
        reasons, num_too_long = Counter({end: ends[end] for end in ends if end in ENVIRONMENT_FAILURES}), ends[NO_TURN]
        told = []
        if self._held_out.has(reasons.total() / max(len(verdicts), 1), reasons):
            told.append(
                f"{reasons.total()} of {len(verdicts)} responses of {where} score 0, whatever the policy wrote, "
                f"because their environments failed: {_listed(reasons)}. {_WHY}"
            )
        if self._held_out_too_long.has(num_too_long / max(len(verdicts), 1)):
            told.append(
                f"{num_too_long} of {len(verdicts)} responses of {where} score 0 without a turn of the policy: their "
                "first observations fill evaluation.max_response_tokens (a set may have its own; null is "
                "rollout.max_response_tokens). Raise it."
            )
        return " ".join(told)


class _News:
    """Failures are news when a reason is new, or the share that fails is `_GROWTH` times what was news before."""

    def __init__(self) -> None:
        self._reasons: set[str] = set()
        self._share = 0.0

    def has(self, share: float, reasons: Iterable[str] = ()) -> bool:
        """Tell whether a share, 0 to 1, that fails for these reasons is news; if so, it is known from now on."""
        found = {*reasons}
        if not share or (found <= self._reasons and share < _GROWTH * self._share):
            return False
        self._reasons |= found
        self._share = max(self._share, share)
        return True


def _num_dropped(batch: Batch) -> int:
    """Dropped prompts that lacked a reward; with dynamic sampling others are dropped that have all of them."""
    scored = Counter(name.prompt for name, request in batch.requests.items() if request.verdict)
    return sum(scored[prompt] < batch.begin.num_responses_needed for prompt in batch.dropped)


def _came_of(batch: Batch, num_dropped: int) -> str:
    """What became of trajectories whose environments failed."""
    book, begin = batch.book, batch.begin
    num_trained = sum(map(len, batch.accepted.values()))
    num_needed = begin.num_prompts_needed * begin.num_responses_needed
    parts = [
        counted(book.num_restarts, "restart") if book.num_restarts else "",
        f"{counted(book.num_given_up, 'response')} given up" if book.num_given_up else "",
        f"{counted(num_dropped, 'prompt')} dropped" if num_dropped else "",
        f"{num_trained} of {num_needed} responses trained" if num_dropped and num_trained < num_needed else "",
    ]
    return ", ".join(filter(None, parts))


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(f"{number} {reason}" for reason, number in reasons.most_common())
