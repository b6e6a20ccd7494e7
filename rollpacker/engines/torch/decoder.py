"""Continuous batching itself: requests in, one token per running sequence and step, finished sequences out.

Pure and synchronous: no thread, no queue between threads, no clock but the one handed in. One `step` fills free slots
from the waiting requests, first come first served, by one forward pass over their prompts (a prompt that several
requests share is computed once), and then extends every running sequence by one token. Bookkeeping is a table with
one entry per row of the cache, so that no Python loop runs over rows per token.

Invariants: every request comes out exactly once, finished or aborted; row i of the table belongs to row i of the
cache; slots of free and running sequences add up to `max_num_seqs`; `busy + idle = sum of capacity over steps`.

Shapes: B rows, V tokens of the vocabulary, U distinct prompts, P tokens of the longest of them.
"""

from __future__ import annotations

import inspect
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import RunningRequest
from rollpacker.engines.checks import check_request, logits_not_finite
from rollpacker.engines.torch.cache import RowCache, prefill_cache
from rollpacker.engines.torch.sampling import keep_likeliest, sample, uniform_numbers
from rollpacker.protocols.rollout import FinishReason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.rollout import GenerationRequest, Logprobs, TokenIds

_MAX_PREFILL_TOKENS = 8192
"""Padded tokens per forward pass over prompts: bounds its activations, and is large enough to keep any CPU busy."""

_ROW = np.dtype(
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
    queue_time_s: float
    generation_time_s: float


@dataclass(slots=True, kw_only=True, eq=False)
class _Sequence:
    request: GenerationRequest
    time_added: float
    time_started: float = 0.0

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


class Decoder:
    """Generates with one model, for one thread."""

    def __init__(
        self,
        model: Any,
        *,
        max_num_seqs: int,
        max_tokens_per_seq: int,
        eos_token_ids: Sequence[int],
        clock: Callable[[], float],
    ) -> None:
        self._model = model
        self._device: torch.device = model.device
        self._config = model.config.get_text_config(decoder=True)
        prefill_cache(self._config)  # refuses a model that cannot be served, before the first request
        self._max_num_seqs = max_num_seqs
        self._max_tokens_per_seq = max_tokens_per_seq
        self._eos_token_ids = np.asarray(eos_token_ids, dtype=np.int64)
        self._clock = clock
        accepted = inspect.signature(model.forward).parameters
        self._takes_position_ids = "position_ids" in accepted
        self._takes_logits_to_keep = "logits_to_keep" in accepted

        self._waiting: dict[RequestId, _Sequence] = {}
        self._running: dict[RequestId, _Sequence] = {}
        self._slots: list[_Sequence | None] = [None] * max_num_seqs
        self._free_slots = deque(range(max_num_seqs))
        self._cache = RowCache(max_num_seqs, self._device)
        self._table = np.zeros(max_num_seqs, dtype=_ROW)
        self._token_ids = np.empty((max_num_seqs, max_tokens_per_seq), dtype=np.int32)
        self._logprobs = np.empty((max_num_seqs, max_tokens_per_seq), dtype=np.float32)
        self._capacity = 0

        self.num_generated_tokens = 0
        self.num_decode_steps = 0
        """Forward passes that extended running sequences; those over prompts are not counted."""
        self.busy_slot_steps = 0
        """Sum over decode steps of the sequences that ran."""
        self.idle_slot_steps = 0
        """Sum over decode steps of `capacity` less the sequences that ran."""
        self.waiting_request_steps = 0
        """Sum over decode steps of the sequences that waited for a slot."""
        self.kv_token_steps = 0
        """Sum over decode steps of the tokens in the cache."""

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def num_in_flight(self) -> int:
        return len(self._running) + len(self._waiting)

    @property
    def is_idle(self) -> bool:
        return self.num_in_flight == 0

    @property
    def num_cached_tokens(self) -> int:
        return self._cache.num_tokens

    @property
    def capacity(self) -> int:
        """Slots that count as this batch's: the most requests in flight since the decoder was last empty.

        At most `max_num_seqs`. Slots that no request ever asked for are not idle, they are spare.
        """
        return self._capacity

    def check(self, request: GenerationRequest) -> None:
        """Refuse a request that could not be served. Touches no state."""
        check_request(request, self._max_tokens_per_seq)

    def add(self, request: GenerationRequest, time_added: float | None = None) -> None:
        """Let a request wait for a slot."""
        self.check(request)
        if request.request in self._running or request.request in self._waiting:
            raise ImpossibleEvent(f"Request {request.request} is in flight already.", "An id is used once.")
        added = self._clock() if time_added is None else time_added
        self._waiting[request.request] = _Sequence(request=request, time_added=added)
        self._capacity = max(self._capacity, min(self._max_num_seqs, self.num_in_flight))

    @torch.inference_mode()
    def abort(self, requests: Sequence[RequestId]) -> list[Generation]:
        """Take requests out with what they have generated. Unknown ones are ignored."""
        aborted = []
        for request in requests:
            sequence = self._waiting.pop(request, None)
            if sequence is not None:
                aborted.append(self._never_started(sequence))
        orders = frozenset(requests)
        slots = self._table["slot"][: self.num_running]
        rows = np.flatnonzero([self._sequence(slot).request.request in orders for slot in slots])
        aborted += self._retire(rows, [FinishReason.ABORTED] * len(rows))
        return aborted

    def abort_all(self) -> list[Generation]:
        return self.abort([*self._waiting, *self._running])

    @torch.inference_mode()
    def step(self) -> list[Generation]:
        """Start what may start, extend what runs by one token, and return what ended."""
        ended = self._admit()
        if self._running:
            ended += self._decode()
        return ended

    def progress(self) -> tuple[RunningRequest, ...]:
        """How far each request is, running ones first."""
        rows = self._table[: self.num_running]
        running = [
            (self._sequence(slot), int(num_tokens))
            for slot, num_tokens in zip(rows["slot"], rows["num_tokens"], strict=True)
        ]
        waiting = [(sequence, len(sequence.begun_token_ids)) for sequence in self._waiting.values()]
        return tuple(
            RunningRequest(sequence.request.request, len(sequence.request.prompt_token_ids), num_generated)
            for sequence, num_generated in running + waiting
        )

    def release(self) -> None:
        """Give back the cache's memory. Nothing may be in flight."""
        self._cache.release()

    # -- one token for every running sequence --

    def _decode(self) -> list[Generation]:
        num_rows = self.num_running
        self.num_decode_steps += 1
        self.busy_slot_steps += num_rows
        self.idle_slot_steps += self._capacity - num_rows
        self.waiting_request_steps += self.num_waiting
        self.kv_token_steps += self.num_cached_tokens
        self._cache.reserve_column()
        last_tokens_B1 = torch.from_numpy(self._table["last_token"][:num_rows, None].copy()).to(self._device)
        logits_BV = self._forward(last_tokens_B1, self._cache.attention_mask(), self._cache.position_ids(), self._cache)
        self._cache.advance()
        return self._draw(0, logits_BV)

    # -- prompts --

    def _admit(self) -> list[Generation]:
        num_free = self._max_num_seqs - self.num_running
        if not self._waiting or not num_free:
            return []
        first_row = self.num_running
        now = self._clock()
        in_turn = sorted(self._waiting.values(), key=lambda sequence: sequence.request.priority)
        admitted = in_turn[:num_free]
        by_prompt: dict[bytes, list[_Sequence]] = {}
        for sequence in admitted:
            del self._waiting[sequence.request.request]
            sequence.time_started = now
            by_prompt.setdefault(sequence.known_token_ids.tobytes(), []).append(sequence)
        logits = [self._prefill(chunk) for chunk in _chunks(list(by_prompt.values()))]
        return self._draw(first_row, torch.cat(logits))

    def _prefill(self, sharers: list[list[_Sequence]]) -> torch.Tensor:
        """Compute the prompts of some sequences, give them rows, and return their first logits."""
        prompts = [sequences[0].known_token_ids for sequences in sharers]
        lengths_U = np.array([len(prompt) for prompt in prompts])
        longest = int(lengths_U.max())
        tokens_UP = np.zeros((len(prompts), longest), dtype=np.int64)
        for row, prompt in enumerate(prompts):
            tokens_UP[row, longest - len(prompt) :] = prompt
        positions_UP = np.arange(longest) - (longest - lengths_U)[:, None]
        has_padding = bool((lengths_U < longest).any())
        cache = prefill_cache(self._config)
        logits_UV = self._forward(
            torch.from_numpy(tokens_UP).to(self._device),
            torch.from_numpy(positions_UP >= 0).to(self._device) if has_padding else None,
            torch.from_numpy(positions_UP.clip(min=0)).to(self._device),
            cache,
        )
        sources = [source for source, sequences in enumerate(sharers) for _ in sequences]
        self._cache.join(cache, sources, [int(lengths_U[source]) for source in sources])
        for sequences in sharers:
            for sequence in sequences:
                self._take_slot(sequence)
        return logits_UV[torch.tensor(sources, device=self._device)]

    def _take_slot(self, sequence: _Sequence) -> None:
        request = sequence.request
        row, slot = self.num_running, self._free_slots.popleft()
        seed = request.seed % 2**64
        begun = request.begun
        num_begun = 0 if begun is None else begun.num_tokens
        if begun is not None:
            self._token_ids[slot, :num_begun] = begun.token_ids
            self._logprobs[slot, :num_begun] = begun.logprobs
        rule = (request.temperature, request.top_p, request.top_k)
        self._table[row] = (slot, num_begun, request.max_response_tokens, seed, *rule, 0)
        self._slots[slot] = sequence
        self._running[request.request] = sequence

    # -- shared by both --

    def _forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: Any,
    ) -> torch.Tensor:
        """Run the model and return each row's logits after its last token."""
        optional: dict[str, Any] = {}
        if self._takes_position_ids:
            optional["position_ids"] = position_ids
        if self._takes_logits_to_keep:
            optional["logits_to_keep"] = 1
        output = self._model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True, **optional
        )
        logits_BV: torch.Tensor = output.logits[:, -1]
        return logits_BV

    def _draw(self, first_row: int, logits_BV: torch.Tensor) -> list[Generation]:
        """Give every row from `first_row` on its next token, and retire the rows that ended by it."""
        rows = self._table[first_row : self.num_running]
        uniforms_B = torch.from_numpy(uniform_numbers(rows["seed"], rows["num_tokens"])).to(self._device)
        temperatures_B = self._unless_all(rows["temperature"], 1)
        logits_BV = keep_likeliest(
            logits_BV, temperatures_B, self._unless_all(rows["top_k"], 0), self._unless_all(rows["top_p"], 1)
        )
        drawn_B, drawn_logprobs_B = sample(logits_BV, temperatures_B, uniforms_B)
        tokens_B, logprobs_B = drawn_B.cpu().numpy(), drawn_logprobs_B.cpu().numpy()
        if not np.isfinite(logprobs_B).all():
            request = self._sequence(rows["slot"][~np.isfinite(logprobs_B)][0]).request.request
            raise logits_not_finite(request)
        self._token_ids[rows["slot"], rows["num_tokens"]] = tokens_B
        self._logprobs[rows["slot"], rows["num_tokens"]] = logprobs_B
        rows["last_token"] = tokens_B
        rows["num_tokens"] += 1
        self.num_generated_tokens += len(rows)
        is_stop_B = (tokens_B[:, None] == self._eos_token_ids).any(axis=1)
        ended = np.flatnonzero(is_stop_B | (rows["num_tokens"] >= rows["max_tokens"]))
        reasons = [FinishReason.STOP if is_stop_B[row] else FinishReason.LENGTH for row in ended]
        return self._retire(first_row + ended, reasons)

    def _unless_all(self, values_B: npt.NDArray[Any], neutral: float) -> torch.Tensor | None:
        """A column of the table for `sample`; None where no row has anything to say."""
        return torch.from_numpy(values_B.copy()).to(self._device) if (values_B != neutral).any() else None

    def _retire(self, rows: npt.NDArray[np.int64], reasons: Sequence[FinishReason]) -> list[Generation]:
        """Free the rows and slots of sequences that ended."""
        if rows.size == 0:
            if self.is_idle:
                self._capacity = 0
            return []
        now = self._clock()
        ended = []
        for row, reason in zip(rows, reasons, strict=True):
            slot, num_tokens = int(self._table["slot"][row]), int(self._table["num_tokens"][row])
            sequence = self._sequence(slot)
            self._slots[slot] = None
            self._free_slots.append(slot)
            del self._running[sequence.request.request]
            ended.append(
                Generation(
                    request=sequence.request.request,
                    finish_reason=reason,
                    token_ids=self._token_ids[slot, :num_tokens].copy(),
                    logprobs=self._logprobs[slot, :num_tokens].copy(),
                    queue_time_s=sequence.time_started - sequence.time_added,
                    generation_time_s=now - sequence.time_started,
                )
            )
        holes, movers = self._cache.remove(rows)
        self._table[holes] = self._table[movers]
        if self.is_idle:
            self._capacity = 0
        return ended

    def _sequence(self, slot: int) -> _Sequence:
        sequence = self._slots[slot]
        assert sequence is not None, f"slot {slot} belongs to a row, so it is taken"
        return sequence

    def _never_started(self, sequence: _Sequence) -> Generation:
        return Generation(
            request=sequence.request.request,
            finish_reason=FinishReason.ABORTED,
            token_ids=sequence.begun_token_ids,
            logprobs=_NO_LOGPROBS if sequence.request.begun is None else sequence.request.begun.logprobs,
            queue_time_s=self._clock() - sequence.time_added,
            generation_time_s=0.0,
        )


def _chunks(sharers: list[list[_Sequence]]) -> Iterator[list[list[_Sequence]]]:
    """Cut prompts, sorted by length so that little is padded, into forward passes of bounded size."""
    chunk: list[list[_Sequence]] = []
    for sequences in sorted(sharers, key=lambda sequences: len(sequences[0].known_token_ids)):
        longest = len(sequences[0].known_token_ids)
        if chunk and (len(chunk) + 1) * longest > _MAX_PREFILL_TOKENS:
            yield chunk
            chunk = []
        chunk.append(sequences)
    if chunk:
        yield chunk
