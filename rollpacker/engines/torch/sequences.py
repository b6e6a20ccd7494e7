"""What a decoder knows of a sequence: its request, its entry in the table of running ones, what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rollpacker.protocols.rollout import FinishReason

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollpacker.core.ids import RequestId, VersionSpan
    from rollpacker.protocols.rollout import GenerationRequest, Logprobs, TokenIds

_MAX_PREFILL_TOKENS = 8192
"""Padded tokens per forward pass over prompts: bounds its activations, and is large enough to keep any CPU busy."""

ROW = np.dtype(
    [
        ("slot", np.int64),
        ("num_tokens", np.int64),
        ("max_tokens", np.int64),
        ("seed", np.uint64),
        ("temperature", np.float32),
        ("top_p", np.float32),
        ("top_k", np.int64),
        ("last_token", np.int64),
    ]
)
"""What a step needs of a running sequence."""

_NO_TOKENS: TokenIds = np.empty(0, dtype=np.int32)
_NO_LOGPROBS: Logprobs = np.empty(0, dtype=np.float32)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Generation:
    """A sequence that left the decoder."""

    request: RequestId
    finish_reason: FinishReason
    token_ids: TokenIds
    logprobs: Logprobs
    begun: tuple[VersionSpan, ...]
    """Spans of what was generated of it before it came here, and here by earlier versions."""
    queue_time_s: float
    generation_time_s: float
    launch: int
    """That of its request."""


@dataclass(slots=True, kw_only=True, eq=False)
class SequenceState:
    """A sequence in the decoder, waiting or running."""

    request: GenerationRequest
    time_added: float
    time_started: float = 0.0
    spans: tuple[VersionSpan, ...] = ()
    """Of what was generated before it came here, and here by earlier versions."""
    num_reported: int = 0
    """Tokens of its response that `Decoder.increments` need not report any more."""

    def __post_init__(self) -> None:
        if self.request.begun is not None:
            self.spans = self.request.begun.spans

    @property
    def begun_token_ids(self) -> TokenIds:
        """What another engine generated of it."""
        begun = self.request.begun
        return _NO_TOKENS if begun is None else begun.token_ids

    @property
    def known_token_ids(self) -> TokenIds:
        """What its prefill computes: the prompt, and what was generated before."""
        begun = self.begun_token_ids
        return np.concatenate([self.request.prompt_token_ids, begun]) if len(begun) else self.request.prompt_token_ids

    def ended(self, reason: FinishReason, token_ids: TokenIds, logprobs: Logprobs, now: float) -> Generation:
        """What it became after it ran."""
        return Generation(
            request=self.request.request,
            finish_reason=reason,
            token_ids=token_ids,
            logprobs=logprobs,
            begun=self.spans,
            queue_time_s=self.time_started - self.time_added,
            generation_time_s=now - self.time_started,
            launch=self.request.launch,
        )

    def never_started(self, now: float) -> Generation:
        """What it became if it was aborted while it waited."""
        return Generation(
            request=self.request.request,
            finish_reason=FinishReason.ABORTED,
            token_ids=self.begun_token_ids,
            logprobs=_NO_LOGPROBS if self.request.begun is None else self.request.begun.logprobs,
            begun=self.spans,
            queue_time_s=now - self.time_added,
            generation_time_s=0.0,
            launch=self.request.launch,
        )


def prompt_chunks(sharers: list[list[SequenceState]]) -> Iterator[list[list[SequenceState]]]:
    """Cut prompts, sorted by length so that little is padded, into forward passes of bounded size."""
    chunk: list[list[SequenceState]] = []
    for sequences in sorted(sharers, key=lambda sequences: len(sequences[0].known_token_ids)):
        longest = len(sequences[0].known_token_ids)
        if chunk and (len(chunk) + 1) * longest > _MAX_PREFILL_TOKENS:
            yield chunk
            chunk = []
        chunk.append(sequences)
    if chunk:
        yield chunk
