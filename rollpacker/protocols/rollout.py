"""The data of a rollout: prompts go in, responses come out, groups are trained."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rollpacker.core.ids import ENVIRONMENT, EngineId, VersionSpan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from rollpacker.core.events import CaseRun
    from rollpacker.core.ids import Domain, PromptId, RequestId
    from rollpacker.protocols.references import Place, Reference

    TokenIds = npt.NDArray[np.int32]
    """Shape [T]."""
    Logprobs = npt.NDArray[np.float32]
    """Shape [T], natural logarithm, of the sampled tokens under the distribution that they were sampled from."""
    Mask = npt.NDArray[np.bool_]
    """Shape [T], true where a policy sampled."""


class FinishReason(StrEnum):
    """Why an engine stopped generating."""

    STOP = "stop"
    """The end-of-sequence token was sampled; it is the response's last token."""
    LENGTH = "length"
    """The response reached `max_response_tokens`; of an environment's, it was cut there, by it, or at `max_turns`."""
    ABORTED = "aborted"
    """Ordered to stop; the response holds what was generated until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One line of the user's prompt file."""

    key: str
    domain: Domain
    messages: tuple[dict[str, Any], ...]
    """Chat messages with `role` and `content`, a text; other fields, such as `tool_calls`, are for the chat template. A
    plain `prompt` field is one user message."""
    text: str | None
    """Set instead of applying the chat template when the file has only a `prompt` field."""
    reference: Reference
    """What its responses are held against."""
    line: Place | None = None
    """Where it was read; None of a prompt that a modelled run made up."""
    suffix: str = ""
    """The `prompt_suffix` that its last message of the user ends with; empty where none was added."""
    row: Mapping[str, Any] = field(default_factory=dict)
    """The fields of the line that nothing else of the prompt was read from, as JSON values: for the reward."""

    @property
    def as_written(self) -> str | list[dict[str, Any]]:
        """The plain text, or the messages, whatever template the policy sees around them."""
        return list(self.messages) if self.text is None else self.text

    @property
    def options(self) -> Mapping[str, Any]:
        """For an environment's reset: the same, and the answer as `ground_truth` where the line has one."""
        answer = getattr(self.reference, "text", None)
        return self.row if answer is None else {**self.row, "ground_truth": answer}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenizedPrompt:
    """A prompt as the model sees it."""

    prompt: Prompt
    token_ids: TokenIds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GenerationRequest:
    """One response to generate."""

    request: RequestId
    prompt_token_ids: TokenIds
    seed: int
    """Seeds this sample's own generator, so that what else is in the batch does not change its tokens."""
    max_response_tokens: int
    temperature: float
    """Divides the logits; 0 takes the likeliest token, whatever the seed (greedy)."""
    top_p: float = 1.0
    """Draws among the likeliest tokens that have at least this probability together; above 0, and 1 is all."""
    top_k: int = 0
    """Draws among so many likeliest tokens, ahead of `top_p`; 0 is all."""
    priority: int = 0
    """An engine starts requests of a lower number first, in order among equals: 0 of training, 1 of evaluation."""
    begun: Response | None = None
    """What was generated of it before it was evicted, by versions from `oldest_policy_version` on. The response
    continues it and contains it; its limit counts from the first token."""
    oldest_policy_version: int | None = None
    """The version that may have sampled its first token; None: that of the engine alone, so no response mixes them."""
    launch: int = 0
    """Which launch of the request this is, as its response repeats: one of an earlier launch says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Response:
    """What an engine made of a request."""

    request: RequestId
    engine: EngineId
    finish_reason: FinishReason
    token_ids: TokenIds
    """Shape [T]; ends with the end-of-sequence token when the reason is `STOP`."""
    logprobs: Logprobs
    """Shape [T]; 0 where an environment wrote."""
    spans: tuple[VersionSpan, ...]
    """Cover the T tokens in order, those of an environment too."""
    queue_time_s: float
    """From the call to the first forward pass."""
    generation_time_s: float
    """From the first forward pass to the last token."""
    launch: int = 0
    """That of the request that it answers."""

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def mask(self) -> Mask | None:
        """Which tokens a policy sampled; None where it sampled all of them."""
        is_sampled = [span.policy_version != ENVIRONMENT for span in self.spans]
        if all(is_sampled):
            return None
        return np.repeat(np.array(is_sampled), [span.num_tokens for span in self.spans])

    @property
    def last_turn(self) -> TokenIds:
        """What a policy wrote after an environment's last words, if there were any."""
        mask = self.mask
        return self.token_ids if mask is None else self.token_ids[np.flatnonzero(~mask)[-1] + 1 :]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenIncrement:
    """Tokens of a response that is under way, told before it ends."""

    request: RequestId
    first_index: int
    """Of the first one in the response, counted from 0 over all that it has, also what other engines generated."""
    token_ids: TokenIds
    """Shape [T], T at least 1."""
    logprobs: Logprobs
    """Shape [T]."""
    policy_version: int
    """That sampled them."""


def spans_after(begun: Sequence[VersionSpan], policy_version: int, num_tokens: int) -> tuple[VersionSpan, ...]:
    """Spans of a response of so many tokens: what was begun, then what this version sampled; no span is empty."""
    num_own = num_tokens - sum(span.num_tokens for span in begun)
    if not num_own:
        return tuple(begun)
    if begun and begun[-1].policy_version == policy_version:
        return (*begun[:-1], VersionSpan(policy_version, begun[-1].num_tokens + num_own))
    return (*begun, VersionSpan(policy_version, num_own))


def empty_response(request: RequestId) -> Response:
    """A trajectory that has nothing yet."""
    return Response(
        request=request,
        engine=EngineId(""),
        finish_reason=FinishReason.ABORTED,
        token_ids=np.empty(0, dtype=np.int32),
        logprobs=np.empty(0, dtype=np.float32),
        spans=(),
        queue_time_s=0.0,
        generation_time_s=0.0,
    )


def with_observation(request: RequestId, begun: Response | None, token_ids: Sequence[int]) -> Response | None:
    """Append what an environment wrote to what a trajectory has; its own tokens stay as they are."""
    if not len(token_ids):
        return begun and replace(begun, finish_reason=FinishReason.ABORTED)
    before = begun or empty_response(request)
    observed = np.asarray(token_ids, dtype=np.int32)
    return replace(
        before,
        finish_reason=FinishReason.ABORTED,
        token_ids=np.concatenate([before.token_ids, observed]),
        logprobs=np.concatenate([before.logprobs, np.zeros(len(observed), dtype=np.float32)]),
        spans=(*before.spans, VersionSpan(ENVIRONMENT, len(observed))),
    )


def without_last_observation(response: Response, reason: FinishReason) -> Response:
    """Give a trajectory that has ended: nothing follows the policy's last turn."""
    spans = response.spans
    while spans and spans[-1].policy_version == ENVIRONMENT:
        spans = spans[:-1]
    num_tokens = sum(span.num_tokens for span in spans)
    return replace(
        response,
        finish_reason=reason,
        token_ids=response.token_ids[:num_tokens],
        logprobs=response.logprobs[:num_tokens],
        spans=spans,
    )


class Turn(NamedTuple):
    """What a policy wrote before an environment answered, and what that gave for it."""

    begin: int
    """Its first token in the response, counted from 0."""
    end: int
    """The token after its last one."""
    reward: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The reward of one response, and why."""

    request: RequestId
    reward: float
    reason: str
    """One of a short list of snake_case words per reward, such as `correct`, `wrong_answer`, `no_answer`, `timeout`."""
    time_s: float
    """Time spent scoring, without waiting."""
    case_runs: tuple[CaseRun, ...] = ()
    """One per test case that was run; empty where nothing runs in a sandbox."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the reward is made of, by name and without weights; empty where it has no parts."""
    scorer: str = "reward"
    """Name of the actor that scored it, such as `judge-0`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RolloutGroup:
    """The accepted responses of one prompt: the unit of training."""

    prompt: PromptId
    domain: Domain
    prompt_token_ids: TokenIds
    responses: tuple[Response, ...]
    """Ascending by sample."""
    rewards: tuple[float, ...]
    """One per response."""
    turns: tuple[tuple[Turn, ...], ...] = ()
    """Of each response, in order; their rewards add up to its own. Empty where no environment answers."""
