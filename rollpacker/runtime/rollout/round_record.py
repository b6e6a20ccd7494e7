"""What is known of every request of one round: the source of the batch and of the `responses` table.

One entry per launched request, aborted ones too. The driver writes facts in as they arrive; nothing is decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rollpacker.core.commands import BeginRound
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.protocols.rollout import FinishReason, Response, RolloutGroup, TokenizedPrompt, Verdict
from rollpacker.rewards.overlong import NO_PUNISHMENT, OverlongPunishment


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """The life of one request. Times are seconds since the run began."""

    request: RequestId
    engine: EngineId
    launched_at_s: float
    placed_at_s: float
    """When the engine that has it now was asked for it."""
    response: Response | None = None
    finished_at_s: float | None = None
    verdict: Verdict | None = None
    scored_at_s: float | None = None
    race_rank: int | None = None
    """1 for the first of its prompt to have its reward."""
    is_accepted: bool = False

    @property
    def is_finished(self) -> bool:
        return self.response is not None and self.response.finish_reason is not FinishReason.ABORTED


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """What a request spent on an engine that did not finish it."""

    request: RequestId
    engine: EngineId
    began_at_s: float
    ended_at_s: float
    is_lost: bool
    """With its engine; otherwise it was evicted and kept its tokens."""


@dataclass(slots=True, kw_only=True)
class RoundRecord:
    """One round, from its beginning to the last late fact."""

    begin: BeginRound
    policy_version: int
    began_at_s: float
    prompts: Mapping[str, TokenizedPrompt]
    overlong: OverlongPunishment = NO_PUNISHMENT
    requests: dict[RequestId, RequestRecord] = field(default_factory=dict)
    accepted: dict[PromptId, tuple[int, ...]] = field(default_factory=dict)
    dropped: dict[PromptId, None] = field(default_factory=dict)
    """Prompts without variance, in the order in which they were dropped."""
    order: tuple[PromptId, ...] | None = None
    """The batch in its canonical order; None while the round runs."""
    long_queue_length: int = 0
    generated_at_s: float = 0.0
    """When the last response before the end of the round came."""
    ended_at_s: float = 0.0
    lent_at_share: float | None = None
    """Of the launched requests, how many had finished when engines were chosen to be lent; None where none were."""
    num_scored: dict[PromptId, int] = field(default_factory=dict)
    stretches: list[Stretch] = field(default_factory=list)
    """In the order in which the requests moved on."""

    def launched(self, request: RequestId, engine: EngineId, now: float) -> Response | None:
        """A request went to an engine: for the first time, again after its engine was lost, or on after an eviction.

        Gives what it has so far, which is something only after an eviction.
        """
        earlier = self.requests.get(request)
        begun = earlier.response if earlier else None
        launched_at_s = earlier.launched_at_s if earlier and begun else now
        if earlier:
            self.stretches.append(
                Stretch(
                    request=request,
                    engine=earlier.engine,
                    began_at_s=earlier.placed_at_s,
                    ended_at_s=earlier.finished_at_s if earlier.finished_at_s is not None else now,
                    is_lost=begun is None,
                )
            )
        self.requests[request] = RequestRecord(
            request=request, engine=engine, launched_at_s=launched_at_s, placed_at_s=now
        )
        return begun

    def came_back(self, response: Response, now: float) -> None:
        record = self.requests[response.request]
        if record.response is not None:
            return  # a duplicate
        record.response = response
        record.finished_at_s = now
        if self.order is None and response.finish_reason is not FinishReason.ABORTED:
            self.generated_at_s = now

    def left_at_s(self, record: RequestRecord) -> float:
        """When the engine was done with a request that came back, as far as known.

        Of those that the round did not wait for, the driver may learn as late as after the training: they were aborted
        when the round ended, unless the engine had finished them just then.
        """
        assert record.response is not None
        assert record.finished_at_s is not None
        in_engine_s = record.response.queue_time_s + record.response.generation_time_s
        return min(record.finished_at_s, max(record.placed_at_s + in_engine_s, self.ended_at_s))

    def scored(self, verdict: Verdict, now: float) -> None:
        record = self.requests[verdict.request]
        if record.verdict is not None:
            return  # a duplicate
        prompt = verdict.request.prompt
        self.num_scored[prompt] = self.num_scored.get(prompt, 0) + 1
        record.verdict = verdict
        record.scored_at_s = now
        record.race_rank = self.num_scored[prompt]

    def accept(self, prompt: PromptId, samples: tuple[int, ...]) -> None:
        self.accepted[prompt] = samples
        for sample in samples:
            self.requests[RequestId(self.begin.round, prompt, sample)].is_accepted = True

    def drop(self, prompt: PromptId) -> None:
        self.dropped[prompt] = None

    def lend(self) -> None:
        """Engines were chosen to be lent to the trainer: note how far the round was."""
        self.lent_at_share = sum(record.is_finished for record in self.requests.values()) / len(self.requests)

    @property
    def num_needed_tokens(self) -> int:
        """Of the responses without which the batch would not be complete: accepted ones, those of dropped prompts."""
        return sum(
            record.response.num_tokens
            for request, record in self.requests.items()
            if record.response is not None and (record.is_accepted or request.prompt in self.dropped)
        )

    def groups(self) -> Iterator[RolloutGroup]:
        """The batch, in canonical order."""
        assert self.order is not None
        return (self.group(prompt) for prompt in self.order)

    def group(self, prompt: PromptId) -> RolloutGroup:
        """What is trained of an accepted prompt."""
        records = [self.requests[RequestId(self.begin.round, prompt, sample)] for sample in self.accepted[prompt]]
        tokenized = self.prompts[prompt.key]
        return RolloutGroup(
            prompt=prompt,
            domain=tokenized.prompt.domain,
            prompt_token_ids=tokenized.token_ids,
            responses=tuple(record.response for record in records if record.response is not None),
            rewards=tuple(reward for reward in map(self.trained_reward, records) if reward is not None),
        )

    def trained_reward(self, record: RequestRecord) -> float | None:
        """The reward as it is trained: as scored, less what over-long shaping takes off; None while there is none."""
        if record.verdict is None or record.response is None:
            return None
        return self.overlong.shape(record.verdict.reward, record.response.num_tokens)
