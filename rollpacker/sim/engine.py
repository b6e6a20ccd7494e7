"""A modelled engine: `protocols.engine.Engine` over a `Decoder`, driven by timers of a virtual-time loop.

Invariant: the only thing that takes time is the decoder and the transfer of weights. Responses have a length and no
content: their tokens are zeros that take no memory. A response's length is known to the workload from the beginning;
nothing above the engine sees it before the response ends.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from rollpacker.core.events import EngineProgress, RunningRequest
from rollpacker.engines.checks import NO_VERSION, check_begun, require_idle, require_policy
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.rollout import FinishReason, Response, spans_after
from rollpacker.sim.decoder import Decoder, Ended, Generation

if TYPE_CHECKING:
    from rollpacker.core.commands import DraftRule
    from rollpacker.core.ids import EngineId, RequestId, VersionSpan
    from rollpacker.protocols.rollout import GenerationRequest, Logprobs, TokenIds
    from rollpacker.protocols.weights import Weights
    from rollpacker.sim.costs import PassCosts


class ResponseLength(NamedTuple):
    """How a response will end."""

    num_tokens: int
    is_truncated: bool


class ModelledEngine:
    """Generates nothing, in the time that it would take.

    Args:
        engine: Its name in responses.
        costs: How long passes take, and how much fits.
        max_num_seqs: Decode slots.
        weight_transfer_s: How long new weights take to arrive.
        switch_s: How long it takes to go to sleep, and to wake.
        start_s: How long the first request with new weights waits.
        own_wake_s: How much longer it waits where no order to wake came before.
        draft_acceptance: Probability that a drafted token is accepted.
        length_of: How each response will end.
        keeps_prefixes: Whether the next turn of a trajectory finds in the KV cache what is left of its last one.
        keeps_requests: Whether it takes weights with requests in flight, and goes on with the KV cache that they have.
        on_sleep: Told the policy version that the engine held as it was put to sleep.
    """

    def __init__(
        self,
        *,
        engine: EngineId,
        costs: PassCosts,
        max_num_seqs: int,
        weight_transfer_s: float,
        switch_s: float,
        start_s: float = 0.0,
        own_wake_s: float = 0.0,
        draft_acceptance: float = 0.0,
        length_of: Callable[[GenerationRequest], ResponseLength],
        keeps_prefixes: bool = False,
        keeps_requests: bool = False,
        on_sleep: Callable[[int], None] | None = None,
    ) -> None:
        self._engine = engine
        self._decoder = Decoder(costs, max_num_seqs, draft_acceptance=draft_acceptance, keeps_prefixes=keeps_prefixes)
        self._weight_transfer_s = weight_transfer_s
        self._switch_s = switch_s
        self._start_s = start_s
        self._own_wake_s = own_wake_s
        self._was_woken = False
        """Since the last weights came."""
        self._first_wait_s = 0.0
        """Of the first request with the weights that it has."""
        self._has_started = True
        """That request has come, or no start is to come."""
        self._started_at_s = 0.0
        """When the start that it waits for is over."""
        self._start_timer: asyncio.TimerHandle | None = None
        self._is_loading = False
        self._length_of = length_of
        self._keeps_requests = keeps_requests
        self._on_sleep = on_sleep
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._stands_by = False
        self._truncated: set[RequestId] = set()
        self._begun: dict[RequestId, tuple[VersionSpan, ...]] = {}
        """Spans of what was generated of requests in flight before they came here, and here by earlier versions."""
        self._arrivals: Arrivals[Response] = Arrivals()
        self._policy_version = NO_VERSION

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        require_policy(self._engine, self._policy_version)
        for request in requests:
            check_begun(self._engine, request, self._policy_version)
        now = self._loop.time()
        if not self._has_started:
            self._has_started, self._started_at_s = True, now + self._first_wait_s
            self._decoder.pause(now)
            self._start_timer = self._loop.call_at(self._started_at_s, self._go_on)
        self._decoder.add([self._generation(request, now) for request in requests], now)
        self._arm()
        if now < self._started_at_s:
            await asyncio.sleep(self._started_at_s - now)

    def _generation(self, request: GenerationRequest, now: float) -> Generation:
        length = self._length_of(request)
        if length.is_truncated:
            self._truncated.add(request.request)
        if request.begun is not None:
            self._begun[request.request] = request.begun.spans
        return Generation(
            request=request.request,
            num_prompt_tokens=len(request.prompt_token_ids),
            length_tokens=length.num_tokens,
            asked_at_s=now,
            launch=request.launch,
            num_generated=0 if request.begun is None else request.begun.num_tokens,
        )

    async def abort(self, requests: Sequence[RequestId]) -> None:
        self._decoder.abort(requests, self._loop.time())
        self._arm()

    async def collect(self) -> Sequence[Response]:
        return await self._arrivals.collect()

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        self._decoder.drafting.use(rules)

    async def load_weights(self, weights: Weights) -> str:
        if not self._keeps_requests:
            require_idle(self._engine, "load weights", self._decoder.num_in_flight)
        is_kept = self._decoder.num_in_flight > 0
        if is_kept:
            self._is_loading = True
            await self._pause()
        await asyncio.sleep(self._weight_transfer_s)
        self._policy_version = weights.policy_version
        self._decoder.forget_prefixes()
        self._first_wait_s = self._start_s + (0.0 if self._was_woken else self._own_wake_s)
        self._has_started, self._was_woken = is_kept, False
        if is_kept:
            self._is_loading = False
            self._go_on()
        return weights.checksum

    def _go_on(self) -> None:
        """Begin passes, unless the engine still starts or loads weights; the end of that calls it, too."""
        now = self._loop.time()
        if now >= self._started_at_s and not self._is_loading:
            self._decoder.resume(now)
            self._arm()

    async def _pause(self) -> None:
        """Wait for the end of the pass under way, and note what the policy of now has generated."""
        now = self._loop.time()
        self._decoder.pause(now)
        self._arm()
        await asyncio.sleep((self._decoder.next_at_s or now) - now)
        self._advance()
        for sequence, num_tokens in self._decoder.progress(self._loop.time()):
            begun = self._begun.get(sequence.request, ())
            self._begun[sequence.request] = spans_after(begun, self._policy_version, num_tokens)

    async def sleep(self) -> None:
        require_idle(self._engine, "sleep", self._decoder.num_in_flight)
        if self._on_sleep is not None:
            self._on_sleep(self._policy_version)
        self._policy_version, self._stands_by = NO_VERSION, False
        self._decoder.forget_prefixes()
        await asyncio.sleep(self._switch_s)

    async def stand_by(self) -> None:
        if not self._stands_by:
            self._stands_by = True
            await asyncio.sleep(self._switch_s)

    async def wake(self) -> None:
        """Take time: that weights must be loaded first is what `sleep` left behind.

        One that stood by goes on with a round that others have begun, so it waits for no start.
        """
        self._has_started = self._has_started or self._stands_by
        self._stands_by, self._was_woken = False, True
        await asyncio.sleep(self._switch_s)

    def unfinished(self) -> list[tuple[RequestId, int]]:
        """Each request in flight with the number of its tokens so far; the last one comes with the response."""
        return [
            (sequence.request, min(num_generated, sequence.length_tokens - 1))
            for sequence, num_generated in self._decoder.progress(self._loop.time())
        ]

    async def progress(self) -> EngineProgress:
        return EngineProgress(
            engine=self._engine,
            kv_tokens_capacity=self._decoder.kv_tokens_capacity,
            running=tuple(
                RunningRequest(sequence.request, sequence.num_prompt_tokens, num_generated)
                for sequence, num_generated in self._decoder.progress(self._loop.time())
            ),
        )

    async def stats(self) -> EngineStats:
        decoder = self._decoder
        return EngineStats(
            kv_tokens_capacity=decoder.kv_tokens_capacity,
            num_preemptions=decoder.num_preemptions,
            num_generated_tokens=decoder.num_generated_tokens,
            num_decode_steps=decoder.num_passes,
            busy_slot_steps=decoder.busy_slot_steps,
            idle_slot_steps=decoder.idle_slot_steps,
            waiting_request_steps=decoder.waiting_request_steps,
            kv_token_steps=decoder.kv_token_steps,
            num_prefix_query_tokens=decoder.prefixes.num_query_tokens,
            num_prefix_hit_tokens=decoder.prefixes.num_hit_tokens,
            policy_version=self._policy_version,
            draft_passes=decoder.drafting.totals(),
        )

    async def close(self) -> None:
        for timer in (self._timer, self._start_timer):
            if timer is not None:
                timer.cancel()
        self._arrivals.close()

    def _arm(self) -> None:
        """Have `_advance` called at the decoder's next boundary."""
        due = self._decoder.next_at_s
        if self._timer is not None:
            if self._timer.when() == due and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._advance)

    def _advance(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        ended = self._decoder.advance()
        self._arm()
        self._arrivals.put([self._response(each) for each in ended])

    def _response(self, ended: Ended) -> Response:
        now, sequence = self._loop.time(), ended.sequence
        started_at_s = now if sequence.started_at_s is None else sequence.started_at_s
        is_truncated = sequence.request in self._truncated
        self._truncated.discard(sequence.request)
        reason = FinishReason.LENGTH if is_truncated else FinishReason.STOP
        num_tokens = sequence.num_generated
        return Response(
            request=sequence.request,
            engine=self._engine,
            finish_reason=FinishReason.ABORTED if ended.is_aborted else reason,
            token_ids=blank_tokens(num_tokens),
            logprobs=blank_logprobs(num_tokens),
            spans=spans_after(self._begun.pop(sequence.request, ()), self._policy_version, num_tokens),
            queue_time_s=started_at_s - sequence.asked_at_s,
            generation_time_s=now - started_at_s,
            launch=sequence.launch,
        )


@functools.cache
def blank_tokens(num_tokens: int) -> TokenIds:
    """So many zeros that share four bytes; read-only."""
    return np.broadcast_to(np.zeros(1, dtype=np.int32), (num_tokens,))


@functools.cache
def blank_logprobs(num_tokens: int) -> Logprobs:
    """The same of log-probabilities."""
    return np.broadcast_to(np.zeros(1, dtype=np.float32), (num_tokens,))
