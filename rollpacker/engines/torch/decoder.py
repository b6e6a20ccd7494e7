"""Continuous batching itself: requests in, one token per running sequence and step, finished sequences out.

Pure and synchronous: no thread, no queue between threads, no clock but the one handed in. One `step` fills free slots
from the waiting requests, by priority and then first come first served, by one forward pass over their prompts (a
prompt that several requests share is computed once), and then extends every running sequence by one token. Bookkeeping
is a table with one entry per row of the cache, so that no Python loop runs over rows per token.

Invariants: every request comes out exactly once, finished or aborted; row i of the table belongs to row i of the
cache; slots of free and running sequences add up to `max_num_seqs`; `busy + idle = sum of capacity over steps`.

With a history, a step may verify draft tokens, by the rules of `use_draft_lengths`, and extend a sequence by several
tokens: the same ones (`verification`).

Shapes: B rows, V tokens of the vocabulary, U distinct prompts, P tokens of the longest of them, G draft tokens,
Q = G + 1.
"""

from __future__ import annotations

import inspect
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import RunningRequest
from rollpacker.engines.checks import logits_not_finite
from rollpacker.engines.draft_lengths import DraftLengths, PassPlan
from rollpacker.engines.torch.cache import RowCache, prefill_cache
from rollpacker.engines.torch.sampling import keep_likeliest, sample, uniform_numbers
from rollpacker.engines.torch.sequences import ROW, Generation, SequenceState, prompt_chunks
from rollpacker.engines.torch.servable import require_servable
from rollpacker.engines.torch.verification import num_kept
from rollpacker.protocols.rollout import FinishReason, spans_after

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

    from rollpacker.core.ids import RequestId
    from rollpacker.engines.torch.history import History
    from rollpacker.protocols.rollout import GenerationRequest, Logprobs, TokenIds

    IntArray = npt.NDArray[np.int64]


class Decoder:
    """Generates with one model, for one thread.

    Args:
        model: Of transformers, as `load_model` gives it.
        max_num_seqs: Slots.
        max_tokens_per_seq: Prompt and response together.
        eos_token_ids: Tokens that end a response.
        clock: Seconds.
        history: Where drafts come from; None never drafts. The model's cache must be able to extend unevenly.
    """

    def __init__(
        self,
        model: Any,
        *,
        max_num_seqs: int,
        max_tokens_per_seq: int,
        eos_token_ids: Sequence[int],
        clock: Callable[[], float],
        history: History | None = None,
    ) -> None:
        self._model = model
        self._device: torch.device = model.device
        self._config = model.config.get_text_config(decoder=True)
        require_servable(model)
        self._max_num_seqs = max_num_seqs
        self._max_tokens_per_seq = max_tokens_per_seq
        self._eos_token_ids = np.asarray(eos_token_ids, dtype=np.int64)
        self._clock = clock
        accepted = inspect.signature(model.forward).parameters
        self._takes_position_ids = "position_ids" in accepted
        self._takes_logits_to_keep = "logits_to_keep" in accepted

        self._waiting: dict[RequestId, SequenceState] = {}
        self._running: dict[RequestId, SequenceState] = {}
        self._slots: list[SequenceState | None] = [None] * max_num_seqs
        self._free_slots = deque(range(max_num_seqs))
        self._cache = RowCache(max_num_seqs, self._device)
        self._table = np.zeros(max_num_seqs, dtype=ROW)
        self._token_ids = np.empty((max_num_seqs, max_tokens_per_seq), dtype=np.int32)
        self._logprobs = np.empty((max_num_seqs, max_tokens_per_seq), dtype=np.float32)
        self._history = history
        self._last_drafting: PassPlan | None = None
        self.draft_lengths = DraftLengths()
        """The rules of passes with drafts, and what these cost and gained; without a history nothing follows them."""

        self.capacity = 0
        """Slots that count as this batch's: the most requests in flight since it was last empty or got its weights.

        At most `max_num_seqs`. Slots that no request ever asked for are not idle, they are spare.
        """
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

    def add(self, request: GenerationRequest, time_added: float | None = None) -> None:
        """Let a request wait for a slot; `check_request` has allowed its lengths."""
        if request.request in self._running or request.request in self._waiting:
            raise ImpossibleEvent(f"Request {request.request} is in flight already.", "An id is used once.")
        added = self._clock() if time_added is None else time_added
        self._waiting[request.request] = SequenceState(request=request, time_added=added)
        self.capacity = max(self.capacity, min(self._max_num_seqs, self.num_in_flight))

    @torch.inference_mode()
    def abort(self, requests: Sequence[RequestId]) -> list[Generation]:
        """Take requests out with what they have generated. Unknown ones are ignored."""
        aborted = []
        for request in requests:
            sequence = self._waiting.pop(request, None)
            if sequence is not None:
                aborted.append(sequence.never_started(self._clock()))
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
        running = [(sequence, num_tokens) for _, sequence, num_tokens in self._lengths()]
        waiting = [(sequence, len(sequence.begun_token_ids)) for sequence in self._waiting.values()]
        return tuple(
            RunningRequest(sequence.request.request, len(sequence.request.prompt_token_ids), num_generated)
            for sequence, num_generated in running + waiting
        )

    def end_version(self, policy_version: int) -> None:
        """Note that what was generated since the last call is of a version; another one goes on over this cache."""
        self.capacity = min(self._max_num_seqs, self.num_in_flight)
        for _, sequence, num_tokens in self._lengths():
            sequence.spans = spans_after(sequence.spans, policy_version, num_tokens)

    def increments(self) -> list[tuple[RequestId, int, TokenIds, Logprobs]]:
        """What running requests gained since the last call: index of the first token, tokens, log-probabilities."""
        gained = []
        for slot, sequence, num_tokens in self._lengths():
            new = slice(sequence.num_reported, num_tokens)
            if new.start < new.stop:
                tokens, logprobs = self._token_ids[slot, new].copy(), self._logprobs[slot, new].copy()
                gained.append((sequence.request.request, new.start, tokens, logprobs))
                sequence.num_reported = new.stop
        return gained

    def _lengths(self) -> Iterator[tuple[int, SequenceState, int]]:
        """Slot, sequence and tokens so far of what runs."""
        rows = self._table[: self.num_running]
        for slot, num_tokens in zip(rows["slot"], rows["num_tokens"], strict=True):
            yield int(slot), self._sequence(slot), int(num_tokens)

    def release(self) -> None:
        """Give back the cache's memory. Nothing may be in flight."""
        self._cache.release()

    # -- one token for every running sequence --

    def _decode(self) -> list[Generation]:
        num_rows = self.num_running
        self.num_decode_steps += 1
        self.busy_slot_steps += num_rows
        self.idle_slot_steps += self.capacity - num_rows
        self.waiting_request_steps += self.num_waiting
        self.kv_token_steps += self.num_cached_tokens
        return self._decode_plainly() if self._history is None else self._decode_with(self._history)

    def _decode_with(self, history: History) -> list[Generation]:
        """Decode by the rules, and count what it cost and gained."""
        num_rows, num_before, began = self.num_running, self.num_generated_tokens, self._clock()
        plan, num_drafted = self.draft_lengths.next_pass(num_rows), 0
        if plan is not None and plan.draft_length:
            drafts_BG, num_drafts_B = self._drafts(history, plan.draft_length)
            num_drafted = int(num_drafts_B.sum())
            ended = self._verify(drafts_BG, num_drafts_B)
            self._last_drafting = plan
        else:
            if self._last_drafting is not None:  # the rows that it left uneven are at its expense
                self._cache.align()
                aligned = self._clock()
                self.draft_lengths.charge(self._last_drafting, aligned - began)
                self._last_drafting, began = None, aligned
            ended = self._decode_plainly()
        if plan is not None:
            num_accepted = self.num_generated_tokens - num_before - num_rows
            self.draft_lengths.count(plan, num_rows, num_drafted, num_accepted, self._clock() - began)
        return ended

    def _decode_plainly(self) -> list[Generation]:
        last_tokens_B1 = torch.from_numpy(self._table["last_token"][: self.num_running, None].copy()).to(self._device)
        self._cache.reserve_columns()
        logits_BV = self._forward(last_tokens_B1, self._cache.attention_mask(), self._cache.position_ids(), self._cache)
        self._cache.advance()
        return self._draw(0, logits_BV)

    # -- several tokens for every running sequence --

    def _drafts(self, history: History, length: int) -> tuple[IntArray, IntArray]:
        """Propose tokens for every row, none beyond its response's last: shape [B, G], and how many each has."""
        rows = self._table[: self.num_running]
        drafts_BG, nums_B = history.draft(rows["slot"], self._token_ids, rows["num_tokens"], length)
        nums_B = np.minimum(nums_B, rows["max_tokens"] - rows["num_tokens"] - 1)
        longest = int(nums_B.max())
        drafts_BG = np.where(np.arange(longest) < nums_B[:, None], drafts_BG[:, :longest], 0)
        return drafts_BG, nums_B

    def _verify(self, drafts_BG: IntArray, num_drafts_B: IntArray) -> list[Generation]:
        """Extend every row by its drafts that are right and one more token, by one pass."""
        rows = self._table[: self.num_running]
        num_queries = 1 + drafts_BG.shape[1]
        if num_queries == 1 and self._cache.is_aligned:
            return self._decode_plainly()
        tokens_BQ = np.concatenate([rows["last_token"][:, None], drafts_BG], axis=1)
        self._cache.reserve_columns(num_queries)
        mask_B1QW, positions_BQ = self._cache.open_columns(num_queries)
        # padding behind a row's drafts may lie beyond the model's last position
        positions_BQ.clamp_(max=self._max_tokens_per_seq - 1)
        input_ids = torch.from_numpy(tokens_BQ).to(self._device)
        logits_BQV = self._forward(input_ids, mask_B1QW, positions_BQ, self._cache, num_queries)
        every = np.repeat(rows, num_queries)
        every["num_tokens"] += np.tile(np.arange(num_queries), len(rows))
        drawn, logprobs = self._sample(every, logits_BQV.flatten(0, -2))
        drawn_BQ = drawn.reshape(-1, num_queries)
        kept_B = num_kept(drawn_BQ, drafts_BG, num_drafts_B, self._eos_token_ids)
        self._cache.keep_columns(kept_B)
        is_kept = (np.arange(num_queries) < kept_B[:, None]).ravel()
        return self._take(0, every[is_kept], drawn[is_kept], logprobs[is_kept], kept_B)

    # -- prompts --

    def _admit(self) -> list[Generation]:
        num_free = self._max_num_seqs - self.num_running
        if not self._waiting or not num_free:
            return []
        first_row = self.num_running
        now = self._clock()
        in_turn = sorted(self._waiting.values(), key=lambda sequence: sequence.request.priority)
        admitted = in_turn[:num_free]
        by_prompt: dict[bytes, list[SequenceState]] = {}
        for sequence in admitted:
            del self._waiting[sequence.request.request]
            sequence.time_started = now
            by_prompt.setdefault(sequence.known_token_ids.tobytes(), []).append(sequence)
        logits = [self._prefill(chunk) for chunk in prompt_chunks(list(by_prompt.values()))]
        return self._draw(first_row, torch.cat(logits))

    def _prefill(self, sharers: list[list[SequenceState]]) -> torch.Tensor:
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

    def _take_slot(self, sequence: SequenceState) -> None:
        request = sequence.request
        row, slot = self.num_running, self._free_slots.popleft()
        seed = request.seed % 2**64
        begun = request.begun
        num_begun = 0 if begun is None else begun.num_tokens
        if begun is not None:
            self._token_ids[slot, :num_begun] = begun.token_ids
            self._logprobs[slot, :num_begun] = begun.logprobs
        # a greedy row has the log-probabilities of all tokens, as vLLM gives them
        rule = (request.temperature, request.top_p, request.top_k) if request.temperature else (0, 1, 0)
        if self._history is not None:
            self._history.begin(slot, request.prompt_token_ids)
        self._table[row] = (slot, num_begun, request.max_response_tokens, seed, *rule, 0)
        sequence.num_reported = num_begun
        self._slots[slot] = sequence
        self._running[request.request] = sequence

    # -- shared by both --

    def _forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor,
        cache: Any,
        num_queries: int = 1,
    ) -> torch.Tensor:
        """Run the model and return each row's logits after its last token, or last tokens: [B, V] or [B, Q, V]."""
        optional: dict[str, Any] = {}
        if self._takes_position_ids:
            optional["position_ids"] = position_ids
        if self._takes_logits_to_keep:
            optional["logits_to_keep"] = num_queries
        output = self._model(
            input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True, **optional
        )
        logits: torch.Tensor = output.logits[:, -1] if num_queries == 1 else output.logits[:, -num_queries:]
        return logits

    def _draw(self, first_row: int, logits_BV: torch.Tensor) -> list[Generation]:
        """Give every row from `first_row` on its next token, and retire the rows that ended by it."""
        rows = self._table[first_row : self.num_running]
        return self._take(first_row, rows.copy(), *self._sample(rows, logits_BV), np.ones(len(rows), dtype=np.int64))

    def _sample(self, rows: npt.NDArray[Any], logits_BV: torch.Tensor) -> tuple[IntArray, Logprobs]:
        """Draw a token for each entry of the table, after `num_tokens` of its response."""
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
        return tokens_B, logprobs_B

    def _take(
        self, first_row: int, every: npt.NDArray[Any], tokens: IntArray, logprobs: Logprobs, nums_B: IntArray
    ) -> list[Generation]:
        """Append tokens, so many to each row from `first_row` on, and retire the rows that ended by them.

        `every` has an entry of the table for each token, with `num_tokens` as its place.
        """
        rows = self._table[first_row : self.num_running]
        self._token_ids[every["slot"], every["num_tokens"]] = tokens
        self._logprobs[every["slot"], every["num_tokens"]] = logprobs
        last_B = tokens[np.cumsum(nums_B) - 1]
        rows["last_token"] = last_B
        rows["num_tokens"] += nums_B
        self.num_generated_tokens += len(tokens)
        is_stop_B = (last_B[:, None] == self._eos_token_ids).any(axis=1)
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
                self.capacity = 0
            return []
        now = self._clock()
        ended = []
        for row, reason in zip(rows, reasons, strict=True):
            slot, num_tokens = int(self._table["slot"][row]), int(self._table["num_tokens"][row])
            sequence = self._sequence(slot)
            if self._history is not None:
                self._history.end(slot, self._token_ids[slot, :num_tokens])
            self._slots[slot] = None
            self._free_slots.append(slot)
            del self._running[sequence.request.request]
            token_ids, logprobs = self._token_ids[slot, :num_tokens].copy(), self._logprobs[slot, :num_tokens].copy()
            ended.append(sequence.ended(reason, token_ids, logprobs, now))
        holes, movers = self._cache.remove(rows)
        self._table[holes] = self._table[movers]
        if self.is_idle:
            self.capacity = 0
        return ended

    def _sequence(self, slot: int) -> SequenceState:
        sequence = self._slots[slot]
        assert sequence is not None, f"slot {slot} belongs to a row, so it is taken"
        return sequence
