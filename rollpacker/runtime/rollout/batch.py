"""One batch: which of a round's responses are trained, in which order, and what the round did to get them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rollpacker.core.commands import AcceptGroup, BeginRound, DropPrompt, EndRound
from rollpacker.core.ids import PromptId, RequestId, sampled
from rollpacker.protocols.rollout import RolloutGroup, TokenizedPrompt, Turn
from rollpacker.rewards.overlong import NO_PUNISHMENT, OverlongPunishment
from rollpacker.runtime.rollout.request_book import RequestBook, RequestRecord

if TYPE_CHECKING:
    from rollpacker.core.environments import Environments


@dataclass(slots=True, kw_only=True)
class Batch:
    """The batch of one step, from the beginning of its round on. Times are seconds since the run began."""

    begin: BeginRound
    policy_version: int
    began_at_s: float
    prompts: Mapping[str, TokenizedPrompt]
    """By key."""
    book: RequestBook = field(default_factory=RequestBook)
    overlong: OverlongPunishment = NO_PUNISHMENT
    max_staleness: int = 0
    """No token of it is more policy versions old."""
    accepted: dict[PromptId, tuple[RequestId, ...]] = field(default_factory=dict)
    dropped: dict[PromptId, None] = field(default_factory=dict)
    """Prompts that are never trained (`DropPrompt`), in order."""
    order: tuple[PromptId, ...] | None = None
    """The batch in its canonical order; None while the round runs."""
    num_deferred_at_once: int = 0
    """Prompts drawn for the round that never raced: their history says that they are long."""
    long_queue_length: int = 0
    generated_at_s: float = 0.0
    """When the last response before the end of the round came."""
    ended_at_s: float = 0.0
    lent_at_share: float | None = None
    """Of the launched requests, how many had finished when engines were chosen to be lent; None where none were."""
    lent_at_s: float | None = None
    """When they were chosen first."""

    @property
    def requests(self) -> Mapping[RequestId, RequestRecord]:
        """Every request of the round; in an asynchronous run those of the groups that were accepted or dropped."""
        return self.book.requests

    @property
    def oldest_policy_version(self) -> int:
        """That its tokens may be of."""
        return max(0, self.policy_version - self.max_staleness)

    def accept(self, command: AcceptGroup) -> None:
        self.accepted[command.prompt] = requests_of(command)
        for record in self._records(command.prompt):
            record.is_accepted = True

    def lend(self, now: float, under_way: Environments | None) -> None:
        """Engines were chosen to be lent to the trainer: note how far the round was, turns in between left out."""
        if self.lent_at_s is None:
            self.lent_at_s = now
        num_finished = sum(
            record.is_finished and not (under_way and under_way.has(request))
            for request, record in self.requests.items()
        )
        self.lent_at_share = num_finished / max(1, len(self.requests))  # none may be sent yet

    def end(self, command: EndRound, now: float) -> None:
        """The round is over: its batch has an order."""
        self.order = command.prompts
        self.long_queue_length = command.long_queue_length
        self.ended_at_s = now

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
        records = self._records(prompt)
        tokenized = self.prompts[prompt.key]
        return RolloutGroup(
            prompt=prompt,
            domain=tokenized.prompt.domain,
            prompt_token_ids=tokenized.token_ids,
            responses=tuple(record.response for record in records if record.response is not None),
            rewards=tuple(reward for reward in map(self.trained_reward, records) if reward is not None),
            turns=tuple(map(self._turns, records)) if self.book.episodes else (),
        )

    def _turns(self, record: RequestRecord) -> tuple[Turn, ...]:
        """The turns of a trajectory.

        What its reward is beside theirs, by over-long shaping or where the run's reward scores it, is its last turn's.
        """
        episode = self.book.episodes.get(record.request)
        if episode is None or not episode.turns or record.verdict is None:
            return ()
        turns = episode.turns
        rest = (self.trained_reward(record) or 0.0) - sum(turn.reward for turn in turns)
        return (*turns[:-1], turns[-1]._replace(reward=turns[-1].reward + rest))

    def trained_reward(self, record: RequestRecord) -> float | None:
        """The reward as it is trained: as scored, less what over-long shaping takes off; None while there is none."""
        if record.verdict is None or record.response is None:
            return None
        return self.overlong.shape(record.verdict.reward, record.response.num_tokens)

    def ages(self, record: RequestRecord) -> list[tuple[int, int]]:
        """How many versions behind the batch's its spans are, each with its number of tokens."""
        spans = sampled(record.response.spans) if record.response else ()
        return [(self.policy_version - span.policy_version, span.num_tokens) for span in spans]

    def _records(self, prompt: PromptId) -> list[RequestRecord]:
        return [self.requests[request] for request in self.accepted[prompt]]


def requests_of(command: AcceptGroup | DropPrompt, num_samples: int = 0) -> tuple[RequestId, ...]:
    """The requests of an accepted group, or of a dropped prompt of so many samples, ascending."""
    samples = command.samples if isinstance(command, AcceptGroup) else range(num_samples)
    return tuple(RequestId(command.round, command.prompt, sample) for sample in samples)
