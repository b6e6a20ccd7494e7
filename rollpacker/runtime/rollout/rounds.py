"""The batch of the round that runs, or ran last, and the evaluation that runs: what the driver writes facts into."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.ids import RequestId, is_held_out
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
from rollpacker.runtime.rollout.request_book import RequestBook

if TYPE_CHECKING:
    from rollpacker.core.commands import BeginEvaluation, BeginRound
    from rollpacker.runtime.rollout.requests import SamplingRules


class Rounds:
    """Keeps what is under way."""

    def __init__(self, sampling: SamplingRules) -> None:
        self._sampling = sampling
        self.batch: Batch | None = None
        """None from the wish for the next one to the begin of its round."""
        self.evaluation: EvaluationRecord | None = None
        """Until `take_evaluation`."""

    @property
    def current(self) -> Batch:
        """Of the round that runs, or ran last."""
        assert self.batch is not None
        return self.batch

    @property
    def is_batch_complete(self) -> bool:
        return self.batch is not None and self.batch.order is not None

    @property
    def is_filled(self) -> bool:
        """True while an evaluation runs in the slots of the round, or after it."""
        evaluation = self.evaluation
        return evaluation is not None and evaluation.has_filled and not evaluation.is_over

    def begin(self, command: BeginRound, policy_version: int, now: float) -> None:
        """A round begins."""
        self.batch = Batch(
            begin=command,
            policy_version=policy_version,
            began_at_s=now,
            prompts=self._sampling.prompts,
            overlong=self._sampling.overlong,
        )

    def begin_evaluation(self, command: BeginEvaluation, policy_version: int, now: float) -> None:
        """An evaluation begins, in a round or between two."""
        self.evaluation = EvaluationRecord(
            begin=command,
            policy_version=policy_version,
            began_at_s=now,
            has_filled=self.batch is not None and self.batch.order is None,
            prompts=self._sampling.held_out,
        )

    def end_evaluation(self, now: float) -> None:
        assert self.evaluation is not None
        self.evaluation.is_over, self.evaluation.ended_at_s = True, now

    def take_evaluation(self) -> EvaluationRecord | None:
        """Give the evaluation that is over, once: its responses may be large."""
        evaluation, self.evaluation = self.evaluation, None
        return evaluation

    def book_of(self, request: RequestId) -> RequestBook:
        """Where a request is written down; a book without it if what it belongs to is over and taken."""
        owner = self.evaluation if is_held_out(request) else self.batch
        return owner.book if owner is not None else RequestBook()
