"""Continuous batching as vLLM does it, in computed time: forward passes over many requests, one event per change.

Theory of operation
===================

Sequences wait, are prefilled, decode one token per forward pass, and end. At every boundary between two passes

1. what was ordered is taken in (new requests, aborts);
2. when the next token of the decoding sequences needs more KV blocks than are free, the sequences admitted last are
   preempted: their blocks are freed, and they wait again, first in line, to be prefilled with all that they had
   (recomputation);
3. unless one was preempted, waiting sequences are admitted, first come first served, while there is a slot, a block
   for each of their tokens, and room in the pass for their prompt.

A pass with prompt tokens in it is computed by itself. A stretch of passes that only decode is computed in one jump, up
to the first end of a sequence or the pass before blocks run out: with n sequences and K cached tokens, pass j takes
`pass_s(n) + kv_read_s * (K + n * (j + 1))`, so k passes are a quadratic in k. With draft tokens a pass gains several
tokens, and a stretch goes on in token steps, each of which takes its share of a pass (`sim.drafting`). An order in the
middle cuts the stretch at the first boundary that follows. So a run costs so much per request and order, not per token.

With `keeps_prefixes` a turn of a trajectory leaves its blocks cached, and the next one here is prefilled behind what is
left of them (`sim.prefixes`).

Invariants: blocks in use never exceed the capacity and add up over the sequences, and what is cached beside them lies
in free blocks (`check`); in every counted pass busy plus idle slots are the slots; each added sequence ends exactly
once.

Deviations from vLLM, all small: a sequence takes the blocks of its whole prompt when it is admitted, not per chunk;
the samples of a prompt are prefilled one by one; and what was aborted or preempted leaves nothing cached.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.sim.costs import KV_BLOCK_TOKENS
from rollpacker.sim.drafting import Drafting
from rollpacker.sim.passes import PrefillPass, Stretch
from rollpacker.sim.prefixes import Prefixes

if TYPE_CHECKING:
    from rollpacker.core.ids import RequestId
    from rollpacker.sim.costs import PassCosts

PREFILL_TOKENS_PER_PASS = 8192
"""Tokens of one pass, decoding sequences included: vLLM's `max_num_batched_tokens` on large GPUs when it serves."""


@dataclass(slots=True, kw_only=True, eq=False)
class Generation:
    """One request and how far it is."""

    request: RequestId
    num_prompt_tokens: int
    length_tokens: int
    """How long its response will be, at least 1."""
    asked_at_s: float
    launch: int = 0
    """That of its request."""
    started_at_s: float | None = None
    """Begin of the first pass that worked on it."""
    num_generated: int = 0
    """Response tokens, those of an earlier engine too; while it decodes, as of its last admission."""
    num_prefilled: int = 0
    """Tokens of the current prefill that are done, or need not be."""
    place: int = -1
    """Its offset while it decodes: cached tokens minus the decoder's pass counter."""
    admission: int = -1
    """Number of its last admission."""

    @property
    def num_known(self) -> int:
        """What a prefill of it computes, but for what is cached."""
        return self.num_prompt_tokens + self.num_generated


class Ended(NamedTuple):
    """A sequence that is done with."""

    sequence: Generation
    is_aborted: bool


class Decoder:
    """The batch of one engine. The caller calls `advance` at `next_at_s` and after every order, and may not be late."""

    def __init__(
        self, costs: PassCosts, max_num_seqs: int, *, draft_acceptance: float = 0.0, keeps_prefixes: bool = False
    ) -> None:
        self._costs = costs
        self._max_num_seqs = max_num_seqs
        self.drafting = Drafting(costs, draft_acceptance)
        self._kv_read_s = costs.kv_read_s
        self._num_blocks = costs.num_kv_blocks
        self._free_blocks = self._num_blocks
        """What is cached in them included."""
        self.prefixes = Prefixes(is_on=keeps_prefixes)
        self._sequences: dict[RequestId, Generation] = {}
        self._waiting: deque[Generation] = deque()
        self._prefilling: deque[Generation] = deque()
        """Admitted; the last ones were admitted last of all."""
        self._decoding: dict[RequestId, Generation] = {}
        """In order of admission."""
        self._ends: list[tuple[int, int, Generation]] = []
        """Heap of (pass counter at its end, admission, sequence); an entry of an earlier admission is void, and so
        is one of a sequence that has left, though its request may have come back."""
        self._num_crossing = [0] * KV_BLOCK_TOKENS
        """By the pass counter modulo the block size: decoding sequences whose blocks are full before that pass."""
        self._sum_places = 0
        self._admissions = itertools.count()
        self._first_of_policy = 0
        """Sequences of an earlier admission began with another policy."""
        self._orders: list[tuple[list[Generation], list[RequestId]]] = []
        self._plan: Stretch | PrefillPass | None = None
        self._is_paused = False
        self._peak_in_flight = 0
        self.num_passes = 0
        """Decoding passes, with drafts token steps; also the counter that places refer to."""
        self.num_generated_tokens = 0
        self.num_preemptions = 0
        self.busy_slot_steps = 0
        self.idle_slot_steps = 0
        self.waiting_request_steps = 0
        self.kv_token_steps = 0
        """Of the sequences that decode."""

    # Orders

    def add(self, sequences: Iterable[Generation], now: float) -> None:
        self._order(list(sequences), [], now)

    def abort(self, requests: Iterable[RequestId], now: float) -> None:
        """Stop requests at the next boundary; unknown ones are ignored."""
        self._order([], list(requests), now)

    def _order(self, sequences: list[Generation], requests: list[RequestId], now: float) -> None:
        self._orders.append((sequences, requests))
        self._cut(now)

    def pause(self, now: float) -> None:
        """Begin no further pass until `resume`: the last boundary is that at `next_at_s`."""
        self._is_paused = True
        self._cut(now)

    def resume(self, now: float) -> None:
        """Go on with what is in flight, as it is, and with as many slots."""
        self._is_paused = False
        self._peak_in_flight = len(self._sequences)
        self._cut(now)

    def forget_prefixes(self) -> None:
        """Lose what is cached, and keep nothing of what is in flight: another policy computes otherwise."""
        self.prefixes.forget()
        self._first_of_policy = next(self._admissions)

    def _cut(self, now: float) -> None:
        """Let the next boundary be the first that can be."""
        if self._plan is None:
            self._plan = PrefillPass(now, now, [])  # a boundary at once
        else:
            self._plan.cut(now)

    # Time

    @property
    def next_at_s(self) -> float | None:
        """When the next boundary comes at which something changes; None while nothing is to be done."""
        return None if self._plan is None else self._plan.ends_at_s

    def advance(self) -> list[Ended]:
        """Go to the boundary at `next_at_s`, and plan from there."""
        plan = self._plan
        if plan is None:
            return []
        now = plan.ends_at_s
        ended: list[Ended] = []
        match plan:
            case Stretch():
                self._decode(plan.num_passes)
                if plan.pace.parts:
                    self.drafting.count(plan)
            case PrefillPass():
                if plan.chunks:
                    self._decode(1 if self._decoding else 0)
                    self._prefill(plan)
        self._collect_ends(ended)
        resumes_at_s = now + self._costs.ending_s * len(ended)
        for sequences, requests in self._orders:
            self._take_in(sequences)
            ended.extend(  # one after the other, so that a request named twice is dropped once
                Ended(sequence=self._drop(request), is_aborted=True)
                for request in requests
                if request in self._sequences
            )
        self._orders.clear()
        self._plan = None if self._is_paused else self._make_plan(resumes_at_s)
        return ended

    def _decode(self, num_passes: int) -> None:
        num_decoding = len(self._decoding)
        self._free_blocks -= self._blocks_needed(num_passes)
        self.prefixes.evict(self._free_blocks)
        num_cached = self._sum_places + num_decoding * self.num_passes
        self.kv_token_steps += num_cached * num_passes + num_decoding * num_passes * (num_passes + 1) // 2
        self.waiting_request_steps += len(self._waiting) * num_passes
        self.num_passes += num_passes
        self.num_generated_tokens += num_decoding * num_passes
        num_busy = num_decoding + len(self._prefilling)
        self.busy_slot_steps += num_busy * num_passes
        self.idle_slot_steps += (min(self._peak_in_flight, self._max_num_seqs) - num_busy) * num_passes

    def _prefill(self, plan: PrefillPass) -> None:
        """Prefill chunks; a sequence whose last chunk is done has its next token from the same pass, and decodes."""
        for sequence, num_tokens in plan.chunks:
            if sequence.started_at_s is None:
                sequence.started_at_s = plan.begins_at_s
            sequence.num_prefilled += num_tokens
            if sequence.num_prefilled == sequence.num_known:
                self._prefilling.popleft()
                self._enter_decoding(sequence)

    def _enter_decoding(self, sequence: Generation) -> None:
        sequence.place = sequence.num_known - self.num_passes
        sequence.num_generated += 1
        self.num_generated_tokens += 1
        self._decoding[sequence.request] = sequence
        self._num_crossing[-sequence.place % KV_BLOCK_TOKENS] += 1
        self._sum_places += sequence.place
        end = self.num_passes + sequence.length_tokens - sequence.num_generated
        heapq.heappush(self._ends, (end, sequence.admission, sequence))

    def _collect_ends(self, ended: list[Ended]) -> None:
        while self._ends and self._ends[0][0] <= self.num_passes:
            _, admission, sequence = heapq.heappop(self._ends)
            if self._is_valid_end(admission, sequence):
                if admission >= self._first_of_policy:
                    self.prefixes.keep(sequence.request, sequence.place + self.num_passes)
                ended.append(Ended(sequence=self._drop(sequence.request), is_aborted=False))

    # Taking in and letting go

    def _take_in(self, sequences: Sequence[Generation]) -> None:
        for sequence in sequences:
            num_tokens = sequence.num_prompt_tokens + sequence.length_tokens
            if _num_blocks(num_tokens) > self._num_blocks:
                raise ImpossibleEvent(
                    f"{sequence.request} needs {num_tokens} tokens of KV cache.",
                    f"The engine has {self.kv_tokens_capacity}.",
                )
            self._sequences[sequence.request] = sequence
            self._waiting.append(sequence)
        self._peak_in_flight = max(self._peak_in_flight, len(self._sequences))

    def _drop(self, request: RequestId) -> Generation:
        """Forget a sequence, wherever it is."""
        sequence = self._sequences.pop(request)
        if request in self._decoding:
            self._leave_decoding(sequence)
        elif sequence in self._prefilling:
            self._prefilling.remove(sequence)
            self._free_blocks += _num_blocks(sequence.num_known)
        else:
            self._waiting.remove(sequence)
        return sequence

    def _leave_decoding(self, sequence: Generation) -> None:
        """Free its blocks, and note how far it came."""
        sequence.num_generated = self._num_generated(sequence)
        del self._decoding[sequence.request]
        self._num_crossing[-sequence.place % KV_BLOCK_TOKENS] -= 1
        self._sum_places -= sequence.place
        self._free_blocks += _num_blocks(sequence.place + self.num_passes)

    # Planning

    def _make_plan(self, now: float) -> Stretch | PrefillPass | None:
        if not self._sequences:
            self._peak_in_flight = 0
            return None
        if not self._preempt():
            self._admit()
        return self._plan_prefill(now) if self._prefilling else self._plan_stretch(now)

    def _preempt(self) -> bool:
        """Free blocks for the next token of every decoding sequence; False when there were enough."""
        has_preempted = False
        while self._blocks_needed(1) > self._free_blocks:
            has_preempted = True
            self.num_preemptions += 1
            if self._prefilling:
                sequence = self._prefilling.pop()
                self._free_blocks += _num_blocks(sequence.num_known)
            else:
                sequence = next(reversed(self._decoding.values()))
                self._leave_decoding(sequence)
            sequence.admission = -1
            self._waiting.appendleft(sequence)
        return has_preempted

    def _admit(self) -> None:
        room = self._prefill_room() - sum(sequence.num_known - sequence.num_prefilled for sequence in self._prefilling)
        while self._waiting and room > 0 and len(self._decoding) + len(self._prefilling) < self._max_num_seqs:
            sequence = self._waiting[0]
            num_blocks = _num_blocks(sequence.num_known)
            if num_blocks > self._free_blocks - self._blocks_needed(1):
                return
            self._waiting.popleft()
            sequence.num_prefilled = self.prefixes.take(sequence.request, sequence.num_known)
            self._free_blocks -= num_blocks
            self.prefixes.evict(self._free_blocks)
            sequence.admission = next(self._admissions)
            self._prefilling.append(sequence)
            room -= sequence.num_known - sequence.num_prefilled

    def _prefill_room(self) -> int:
        return max(PREFILL_TOKENS_PER_PASS - len(self._decoding), 1)

    def _plan_prefill(self, now: float) -> PrefillPass:
        room = self._prefill_room()
        chunks: list[tuple[Generation, int]] = []
        for sequence in self._prefilling:
            size = min(sequence.num_known - sequence.num_prefilled, room)
            if size == 0:
                break
            chunks.append((sequence, size))
            room -= size
        parts = [(sequence.num_prefilled, sequence.num_prefilled + size) for sequence, size in chunks]
        pass_s = self._costs.prefill_pass_s(len(self._decoding), parts) + self._kv_read_s * self._num_read()
        return PrefillPass(now, now + pass_s, chunks)

    def _plan_stretch(self, now: float) -> Stretch:
        """Plan up to the first end: no sequence can be admitted before it.

        Free blocks only become fewer until then. That holds after a preemption too, where admission was not tried: the
        first in line was preempted last, and needs the blocks that it gave, of which the others take some now.
        """
        num_decoding = len(self._decoding)
        num_passes = self._first_end() - self.num_passes
        if self._blocks_needed(num_passes) > self._free_blocks:
            num_passes = self._passes_in_free_blocks()
        pace = self.drafting.pace(num_decoding)
        kv_read_s = self._kv_read_s * pace.passes_per_step
        return Stretch(
            begins_at_s=now,
            num_passes=num_passes,
            first_s=pace.step_s + kv_read_s * self._num_read(),
            growth_s=kv_read_s * num_decoding,
            num_sequences=num_decoding,
            pace=pace,
        )

    def _first_end(self) -> int:
        """The pass counter at which the next sequence ends."""
        while not self._is_valid_end(*self._ends[0][1:]):
            heapq.heappop(self._ends)
        return self._ends[0][0]

    def _is_valid_end(self, admission: int, sequence: Generation) -> bool:
        return sequence.admission == admission and self._decoding.get(sequence.request) is sequence

    def _num_read(self) -> int:
        """Cached tokens that the next decoding pass reads, the tokens that it adds included."""
        return self._sum_places + len(self._decoding) * (self.num_passes + 1)

    # Blocks

    def _blocks_needed(self, num_passes: int) -> int:
        """Further blocks that the decoding sequences need for so many passes."""
        cycles, rest = divmod(num_passes, KV_BLOCK_TOKENS)
        return cycles * len(self._decoding) + sum(self._next_crossings()[:rest])

    def _passes_in_free_blocks(self) -> int:
        cycles, free = divmod(self._free_blocks, len(self._decoding))
        num_passes = cycles * KV_BLOCK_TOKENS
        for num_crossing in self._next_crossings():
            free -= num_crossing
            if free < 0:
                break
            num_passes += 1
        return num_passes

    def _next_crossings(self) -> list[int]:
        """Sequences whose blocks are full before each of the next passes, as many passes as a block has tokens."""
        phase = self.num_passes % KV_BLOCK_TOKENS
        return self._num_crossing[phase:] + self._num_crossing[:phase]

    # Views

    @property
    def num_running(self) -> int:
        return len(self._decoding) + len(self._prefilling)

    def progress(self, now: float) -> list[tuple[Generation, int]]:
        """Each request in flight with the tokens generated of it, that of the pass under way included."""
        num_ahead = self._plan.passes_begun(now) if isinstance(self._plan, Stretch) else 0
        ordered = [(sequence, sequence.num_generated) for added, _ in self._orders for sequence in added]
        return [
            (sequence, self._num_generated(sequence) + (num_ahead if request in self._decoding else 0))
            for request, sequence in self._sequences.items()
        ] + ordered

    def _num_generated(self, sequence: Generation) -> int:
        if sequence.request not in self._decoding:
            return sequence.num_generated
        return sequence.place + self.num_passes - sequence.num_prompt_tokens + 1

    @property
    def num_in_flight(self) -> int:
        return len(self._sequences) + sum(len(sequences) for sequences, _ in self._orders)

    @property
    def kv_tokens_capacity(self) -> int:
        return self._num_blocks * KV_BLOCK_TOKENS

    def check(self) -> None:
        """Re-derive the invariants from scratch; raises `InvariantViolated`."""
        cached = [sequence.place + self.num_passes for sequence in self._decoding.values()]
        used = sum(map(_num_blocks, cached)) + sum(_num_blocks(sequence.num_known) for sequence in self._prefilling)
        if used + self._free_blocks != self._num_blocks or self._free_blocks < 0:
            raise InvariantViolated(f"{used} of {self._num_blocks} blocks are used, {self._free_blocks} free.")
        if self.prefixes.num_blocks > self._free_blocks:
            raise InvariantViolated(f"{self.prefixes.num_blocks} blocks of {self._free_blocks} free ones are cached.")
        if sum(cached) != self._sum_places + len(cached) * self.num_passes:
            raise InvariantViolated(f"{sum(cached)} tokens are cached.")
        if len(self._decoding) + len(self._prefilling) + len(self._waiting) != len(self._sequences):
            raise InvariantViolated(f"{len(self._sequences)} sequences are in flight, and some are nowhere.")
        if self.num_running > self._max_num_seqs:
            raise InvariantViolated(f"{self.num_running} sequences run in {self._max_num_seqs} slots.")


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // KV_BLOCK_TOKENS)
