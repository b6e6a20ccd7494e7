"""One request to vLLM: its sampling parameters, and its outputs step by step.

A sample has a generator of its own, seeded by the request's seed, so the random numbers that it draws do not depend on
what else is in the batch, on preemption, or on the engine. Its tokens are the same wherever the logits are; and those
are not quite: kernels add in another order in another batch, so logits of the same sequence differ in their last bits
from batch to batch, and a token whose draw falls between two such logits comes out differently, and with it all that
follow. The torch engine has the same limit. Unlike it, vLLM may draw from a generator with a state (on a processor it
does), so that a response that is resubmitted with its beginning does not draw what it would have drawn in one go. It
gets a seed of its own, from the request's seed and the number of tokens begun: with the same one it would draw the
first tokens' numbers again.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from vllm.sampling_params import RequestOutputKind, SamplingParams

from rollpacker.core.errors import EngineFailed
from rollpacker.engines.checks import logits_not_finite
from rollpacker.protocols.rollout import FinishReason, TokenIncrement, spans_after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vllm.outputs import RequestOutput, WeightVersionSpan

    from rollpacker.core.ids import VersionSpan
    from rollpacker.protocols.rollout import GenerationRequest, Logprobs, TokenIds

STREAM_INTERVAL = 16
"""Tokens between two reports of vLLM on one request. With the demo's model and 128 requests in flight, reports of every
token took 51 us of this process's time per token, of every 16th 37. Nothing is lost by an abort, but what `progress`
says of a request is up to this many tokens old."""


@dataclass(slots=True, kw_only=True, eq=False)
class Flight:
    """A request in vLLM, and what came of it so far."""

    request: GenerationRequest
    key: str
    """Its name in vLLM."""
    time_added: float
    """Seconds of the monotonic clock, which all processes of a machine share."""
    is_submitted: bool = False
    """Whether vLLM knows of it."""
    is_aborted: bool = False
    """Whether it was ordered to stop."""
    may_start: asyncio.Event = field(default_factory=asyncio.Event)
    """Not set while the request waits, withdrawn from vLLM, for other weights."""
    token_ids: list[int] = field(default_factory=list)
    """Of this engine, without what another one began."""
    logprobs: list[float] = field(default_factory=list)
    time_started: float | None = None
    """Of its first forward pass."""
    time_of_last_token: float = 0.0
    finish_reason: FinishReason | None = None
    spans: tuple[VersionSpan, ...] = ()
    """Of what was generated before it came here; at its end, of the whole response."""
    num_reported: int = 0
    """Of `token_ids`, those that `increment` need not report any more."""

    def __post_init__(self) -> None:
        self.may_start.set()
        self.restart()

    def restart(self) -> None:
        """Forget what vLLM reported."""
        self.is_submitted = False
        self.token_ids, self.logprobs, self.num_reported = [], [], 0
        self.time_started = self.finish_reason = None
        self.spans = () if self.request.begun is None else self.request.begun.spans

    def stop(self) -> None:
        """Note the order to stop. vLLM is told of it where it knows of the request."""
        self.is_aborted = True
        self.may_start.set()

    @property
    def has_ended(self) -> bool:
        """Whether vLLM has reported the end, and not because the request was withdrawn."""
        is_withdrawn = self.finish_reason is FinishReason.ABORTED and not self.is_aborted
        return self.finish_reason is not None and not is_withdrawn

    @property
    def num_tokens(self) -> int:
        """Of the response, begun elsewhere or not."""
        begun = self.request.begun
        return len(self.token_ids) + (0 if begun is None else begun.num_tokens)

    @property
    def known_token_ids(self) -> list[int]:
        """The prompt, and what was generated before."""
        request = self.request
        begun: list[int] = [] if request.begun is None else request.begun.token_ids.tolist()
        return [*request.prompt_token_ids.tolist(), *begun]

    def take(self, output: RequestOutput) -> None:
        """Add what vLLM reports."""
        completion = output.outputs[0]
        self.token_ids.extend(completion.token_ids)
        if completion.token_ids:
            self.logprobs.extend(completion.logprobs.logprobs)
        if output.metrics.scheduled_ts:
            self.time_started = output.metrics.scheduled_ts
            self.time_of_last_token = output.metrics.last_token_ts
        if output.finished:
            self.finish_reason = _REASONS.get(completion.finish_reason)
            if self.finish_reason is None:
                raise EngineFailed(f"vLLM gave up {self.request.request}: {completion.finish_reason}.")
            self._count_spans(completion.weight_versions or ())

    def _count_spans(self, versions: Sequence[WeightVersionSpan]) -> None:
        """Say which version sampled which token; vLLM counts its own tokens, by the names of the weights it held."""
        num_begun = self.num_tokens - len(self.token_ids)
        for span in versions:
            self.spans = spans_after(self.spans, int(span.version), num_begun + span.end)

    def increment(self, policy_version: int) -> TokenIncrement | None:
        """What vLLM reported since the last call; None if nothing.

        Raises:
            EngineRaised: One of the log-probabilities is not a finite number.
        """
        new = slice(self.num_reported, len(self.token_ids))
        if new.start == new.stop:
            return None
        logprobs = self._finite(self.logprobs[new])
        self.num_reported = new.stop
        return TokenIncrement(
            request=self.request.request,
            first_index=self.num_tokens - (new.stop - new.start),
            token_ids=np.array(self.token_ids[new], dtype=np.int32),
            logprobs=logprobs,
            policy_version=policy_version,
        )

    @property
    def queue_time_s(self) -> float:
        """As `Response.queue_time_s`; of a request that never started, until now."""
        started = time.monotonic() if self.time_started is None else self.time_started
        return started - self.time_added

    @property
    def generation_time_s(self) -> float:
        return 0.0 if self.time_started is None else self.time_of_last_token - self.time_started

    def response_token_ids(self) -> TokenIds:
        """The whole response, begun elsewhere or not."""
        generated = np.array(self.token_ids, dtype=np.int32)
        begun = self.request.begun
        return generated if begun is None else np.concatenate([begun.token_ids, generated])

    def response_logprobs(self) -> Logprobs:
        """The same for its log-probabilities.

        Raises:
            EngineRaised: One of them is not a finite number.
        """
        generated = self._finite(self.logprobs)
        begun = self.request.begun
        return generated if begun is None else np.concatenate([begun.logprobs, generated])

    def _finite(self, logprobs: Sequence[float]) -> Logprobs:
        finite = np.array(logprobs, dtype=np.float32)
        if not np.isfinite(finite).all():
            raise logits_not_finite(self.request.request)
        return finite


_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORTED}


def sampling_params(request: GenerationRequest, end_tokens: Sequence[int]) -> SamplingParams:
    """Say to vLLM what a request asks for."""
    num_begun = 0 if request.begun is None else request.begun.num_tokens
    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=_seed(request.seed, num_begun),
        max_tokens=request.max_response_tokens - num_begun,
        stop_token_ids=list(end_tokens),
        ignore_eos=True,  # the list above has it, and what other engines end by
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.DELTA,  # with FINAL_ONLY an aborted request comes back empty
    )


def _seed(seed: int, num_begun: int) -> int:
    """63 bits: vLLM keeps seeds as signed words, and takes -1 as none."""
    if num_begun == 0:
        return seed % 2**63
    digest = hashlib.blake2b(f"{seed} {num_begun}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % 2**63
