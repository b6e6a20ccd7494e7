"""What the driver writes facts into: the batch of the round that runs, or ran last, and the evaluation that runs.

In a synchronous run a round's requests are its batch's own. In an asynchronous run they are in one book over all steps,
until their group is accepted or dropped: then the batch of the step gets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.ids import RequestId, is_held_out
from rollpacker.runtime.rollout.batch import Batch, requests_of
from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
from rollpacker.runtime.rollout.request_book import RequestBook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rollpacker.core.commands import (
        AcceptGroup,
        BeginEvaluation,
        BeginRound,
        DropPrompt,
        EndRound,
        Launch,
        ScoreResponse,
    )
    from rollpacker.protocols.reward import ResponseToScore
    from rollpacker.protocols.rollout import GenerationRequest
    from rollpacker.runtime.rollout.requests import SamplingRules


class Rounds:
    """Keeps what is under way."""

    def __init__(self, sampling: SamplingRules) -> None:
        self.sampling = sampling
        self.live = RequestBook()
        """In an asynchronous run, the requests that are under way; empty in a synchronous one."""
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
    def goes_on(self) -> bool:
        """Whether requests outlive the step in which they began."""
        return self.sampling.max_staleness > 0

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
            prompts=self.sampling.prompts,
            overlong=self.sampling.overlong,
            max_staleness=self.sampling.max_staleness,
        )
        dropped, self.live.dropped = self.live.dropped, []
        for each in dropped:
            self.drop(each)

    def accept(self, command: AcceptGroup) -> Batch:
        """A group is of the batch, which is given."""
        if self.goes_on:
            self.live.give(requests_of(command), self.current.book)
        self.current.accept(command)
        return self.current

    def drop(self, command: DropPrompt) -> None:
        """A prompt is never trained."""
        if not self.goes_on:
            self.current.dropped[command.prompt] = None
        elif self.batch is None or self.is_batch_complete:
            self.live.dropped.append(command)
        else:
            requests = requests_of(command, self.current.begin.num_responses_launched)
            self.live.give(requests, self.current.book)
            self.current.dropped[command.prompt] = None

    def end(self, command: EndRound, now: float) -> None:
        """The batch is complete."""
        if self.goes_on:
            self.live.give_costs(self.current.book)
        self.current.end(command, now)

    def begin_evaluation(self, command: BeginEvaluation, policy_version: int, now: float, *, fills: bool) -> None:
        """An evaluation begins, and fills the round, or is alone between two."""
        self.evaluation = EvaluationRecord(
            begin=command,
            policy_version=policy_version,
            began_at_s=now,
            has_filled=fills,
            prompts=self.sampling.held_out,
        )

    def end_evaluation(self, now: float) -> None:
        assert self.evaluation is not None
        self.evaluation.is_over, self.evaluation.ended_at_s = True, now

    def take_evaluation(self) -> EvaluationRecord | None:
        """Give the evaluation that is over, once: its responses may be large."""
        evaluation, self.evaluation = self.evaluation, None
        return evaluation

    def is_gone(self, request: RequestId) -> bool:
        """Whether no record of it is kept, in an asynchronous run: a batch has it, or it never had one."""
        return self.goes_on and not is_held_out(request) and request not in self.live.requests

    def generation(
        self, launch: Launch, policy_version: int, now: float, *, is_needed: bool = True
    ) -> GenerationRequest:
        """What an engine, which holds this version, is asked for.

        One that is not needed any more is stopped next. If its prompt was dropped in an asynchronous run, its batch has
        its record, and takes none later.
        """
        book = RequestBook() if not is_needed and self.is_gone(launch.request) else self.book_of(launch.request)
        record = book.launched(launch.request, launch.engine, now)
        return self.sampling.generation(launch.request, record.begun, policy_version, record.launch)

    def scoring(self, commands: Iterable[ScoreResponse]) -> list[ResponseToScore]:
        """What the reward is asked for; nothing of prompts that were dropped since."""
        return [self._scoring(command) for command in commands if not self.is_gone(command.request)]

    def _scoring(self, command: ScoreResponse) -> ResponseToScore:
        response = self.book_of(command.request).requests[command.request].response
        assert response is not None
        return self.sampling.scoring(command, response)

    def book_of(self, request: RequestId) -> RequestBook:
        """Where a request is written down; a book without it if what it belongs to is over and taken."""
        if self.goes_on and not is_held_out(request):
            return self.live
        owner = self.evaluation if is_held_out(request) else self.batch
        return owner.book if owner is not None else RequestBook()
