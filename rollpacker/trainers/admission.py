"""Lets into a step only what belongs to its batch.

Invariant: `admit` either takes all groups of a call or raises and changes nothing. What was admitted is of the
announced policy versions token by token, no prompt is in it twice, and it never exceeds the announced shape.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rollpacker.core.errors import ForeignVersion, ImpossibleEvent
from rollpacker.core.ids import sampled
from rollpacker.protocols.rollout import FinishReason

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.core.ids import PromptId
    from rollpacker.protocols.rollout import Response, RolloutGroup
    from rollpacker.protocols.trainer import BatchShape

_REPORT = "Report this with the run's event log"


class Admission:
    """Counts what came of one batch."""

    def __init__(self, shape: BatchShape) -> None:
        """Expect a batch; raises `ImpossibleEvent` for an empty one, which no loss can be normalised by."""
        if shape.num_groups < 1 or shape.num_responses < 1:
            raise ImpossibleEvent(
                f"Step {shape.step} was announced with {shape.num_groups} groups and {shape.num_responses} responses",
                "A batch has at least one of each",
                _REPORT,
            )
        self.shape = shape
        self.num_responses = 0
        """Admitted so far."""
        self.is_closed = False
        self._prompts: set[PromptId] = set()

    def admit(self, groups: Sequence[RolloutGroup]) -> None:
        """Take groups, or raise `ForeignVersion` or `ImpossibleEvent` and take none."""
        self._require_open()
        prompts = set(self._prompts)
        num_responses = self.num_responses
        for group in groups:
            self._check_group(group)
            if group.prompt in prompts:
                raise ImpossibleEvent(
                    f"Prompt {group.prompt} came twice in step {self.shape.step}",
                    "Each prompt is trained exactly once per epoch",
                    _REPORT,
                )
            prompts.add(group.prompt)
            num_responses += len(group.responses)
        if len(prompts) > self.shape.num_groups or num_responses > self.shape.num_responses:
            raise ImpossibleEvent(
                f"Step {self.shape.step} got {len(prompts)} groups with {num_responses} responses",
                f"Its batch was announced with {self.shape.num_groups} groups and {self.shape.num_responses} responses",
                _REPORT,
            )
        self._prompts, self.num_responses = prompts, num_responses

    def close(self, num_responses: int | None = None) -> None:
        """Admit no more; raises `ImpossibleEvent` unless the batch is whole, which may be smaller than announced."""
        self._require_open()
        shape = self.shape
        num_responses = shape.num_responses if num_responses is None else num_responses
        lacks_groups = num_responses == shape.num_responses and len(self._prompts) < shape.num_groups
        if lacks_groups or not 0 < num_responses == self.num_responses:
            raise ImpossibleEvent(
                f"Step {shape.step} was to finish after {len(self._prompts)} of {shape.num_groups} groups "
                f"and {self.num_responses} of {num_responses} responses",
                "A step finishes when its whole batch was accumulated",
                _REPORT,
            )
        self.is_closed = True

    def _require_open(self) -> None:
        if self.is_closed:
            raise ImpossibleEvent(
                f"The batch of step {self.shape.step} was completed, and more came of it",
                "Its groups come before, and it is completed once",
                _REPORT,
            )

    def _check_group(self, group: RolloutGroup) -> None:
        problem = None
        if not group.responses or len(group.rewards) != len(group.responses):
            problem = f"{len(group.responses)} responses and {len(group.rewards)} rewards"
        elif not all(math.isfinite(reward) for reward in group.rewards):
            problem = f"the rewards {group.rewards}"
        elif not len(group.prompt_token_ids):
            problem = "an empty prompt"
        if problem is not None:
            raise ImpossibleEvent(
                f"The group of prompt {group.prompt} has {problem}",
                "A group has a prompt of at least one token, and one finite reward for each of its responses",
                _REPORT,
            )
        for response in group.responses:
            self._check_response(response)

    def _check_response(self, response: Response) -> None:
        oldest, newest = self.shape.oldest_policy_version, self.shape.policy_version
        spans = sampled(response.spans)
        foreign = {span.policy_version for span in spans} - set(range(oldest, newest + 1))
        if foreign:
            legal = f"version {newest} only" if oldest == newest else f"versions {oldest} to {newest}"
            raise ForeignVersion(
                f"Response {response.request} holds tokens of policy version {', '.join(map(str, sorted(foreign)))}",
                f"Step {self.shape.step} trains tokens of {legal}",
                _REPORT,
            )
        if response.finish_reason is FinishReason.ABORTED:
            raise ImpossibleEvent(
                f"Response {response.request} was aborted after {response.num_tokens} tokens",
                "Only responses that ran to their end are trained",
                _REPORT,
            )
        num_spanned = sum(span.num_tokens for span in response.spans)
        lengths = {response.num_tokens, num_spanned, len(response.logprobs)}
        if len(lengths) != 1 or not 0 < response.num_tokens <= self.shape.max_response_tokens or not spans:
            raise ImpossibleEvent(
                f"Response {response.request} has {response.num_tokens} tokens, {len(response.logprobs)} "
                f"log-probabilities and spans over {num_spanned} tokens, {len(spans)} of them a policy's",
                f"The three are equal and between 1 and {self.shape.max_response_tokens}; a policy sampled some",
                _REPORT,
            )
