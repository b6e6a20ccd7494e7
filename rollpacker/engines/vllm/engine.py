"""The vLLM engine: `protocols.engine.Engine` around an `AsyncLLM`, whose processes do the work.

One task per request follows what vLLM reports of it; all tasks run in the event loop in which the engine was made.
vLLM's end (its process was killed, a worker died) ends the engine: what was collected by then is returned, and
`collect` and everything after raise.

States of the policy: none (fresh, just woken, or an update failed) -> held (weights loaded) -> asleep. Requests are
taken only while a policy is held, weights change only while nothing is in flight, so what it generates of a response
has one version. An engine that keeps requests (`system.interrupt=keep`) pauses vLLM between two passes, replaces its
weights and goes on with the KV cache that it has; vLLM itself says which weights sampled which token. Nothing of that
cache serves a later request: prefixes are shared only among requests of one version, by a salt. vLLM takes the salt
with the request, so requests without a token are withdrawn before the update and submitted again, in order, after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import transformers
from vllm.config import VllmConfig
from vllm.inputs import tokens_input
from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.commands import DraftRule
from rollpacker.core.errors import EngineFailed, ImpossibleEvent
from rollpacker.core.events import EngineProgress, RunningRequest
from rollpacker.core.foreign_errors import failure_of
from rollpacker.core.ids import EngineId, RequestId
from rollpacker.data.causal_models import max_positions
from rollpacker.engines.checks import (
    NO_VERSION,
    check_begun,
    check_fit,
    check_ids,
    check_request,
    require_idle,
    require_loadable,
    require_policy,
)
from rollpacker.engines.end_tokens import end_tokens
from rollpacker.engines.vllm.arguments import expected_tensors, make_llm
from rollpacker.engines.vllm.drafting import try_drafts
from rollpacker.engines.vllm.lifeline import SHUTDOWN_S
from rollpacker.engines.vllm.receiving import fetch_weights
from rollpacker.engines.vllm.sampling import Flight, sampling_params
from rollpacker.engines.vllm.sending import send_tensors
from rollpacker.engines.vllm.stats import StepTotals
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenIncrement
from rollpacker.protocols.weights import Weights
from rollpacker.transfer.offers import WeightOffer

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def drawable_end_tokens(model_path: Path, num_words: int) -> list[int]:
    """End tokens that are in the model's vocabulary: some directories name others, too, which vLLM refuses.

    Raises:
        ModelError: The directory names no end token at all.
    """
    named = end_tokens(model_path)
    drawable = [token for token in named if token < num_words]
    if not drawable:
        _LOG.warning(
            "None of the end tokens of %s, %s, is among the %d tokens of the model: every response ends at its limit.",
            *(model_path, ", ".join(map(str, named)), num_words),
        )
    return drawable


class VllmEngine:
    """Generates with vLLM's processes, which it starts and ends. `start.start_vllm` makes it."""

    def __init__(
        self,
        engine: EngineId,
        model_path: Path,
        section: EngineSection,
        max_tokens_per_seq: int,
        dtype: str,
        *,
        keeps_requests: bool = False,
    ) -> None:
        self._engine = engine
        self._keeps_requests = keeps_requests
        self._loop = asyncio.get_running_loop()
        self._tensors = expected_tensors(model_path, dtype)
        config = transformers.AutoConfig.from_pretrained(model_path, local_files_only=True)
        self._max_tokens_per_seq = min(max_tokens_per_seq, max_positions(config) or max_tokens_per_seq)
        self._policy_version = NO_VERSION
        self._is_asleep = self._stands_by = False
        self._is_closing = False
        self._drafts_are_tried = False
        self._failure: EngineFailed | None = None
        self._ended: asyncio.Future[None] = self._loop.create_future()
        """Done when vLLM has ended, for whatever reason."""
        self._flights: dict[RequestId, Flight] = {}
        self._followers: set[asyncio.Task[None]] = set()
        self._num_requests = 0
        self._done: list[Response] = []
        self._arrival = asyncio.Event()
        self._totals: StepTotals
        self._end_tokens = drawable_end_tokens(model_path, config.get_text_config(decoder=True).vocab_size)
        self._llm = make_llm(model_path, section, self._max_tokens_per_seq, dtype, self._make_totals)
        self._has_sleep_mode: bool = self._llm.vllm_config.model_config.enable_sleep_mode
        # its task for vLLM's outputs ends with vLLM's process
        self._llm.output_handler.add_done_callback(lambda _: self._notice_end())

    # -- what the driver calls --

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        self._require_open()
        require_policy(self._engine, self._policy_version)
        check_ids(requests)
        for request in requests:
            check_request(request, self._max_tokens_per_seq)
            check_begun(self._engine, request, self._policy_version)
            if request.request in self._flights:
                raise ImpossibleEvent(f"Request {request.request} is in flight already.", "An id is used once.")
        now = time.monotonic()
        for request in requests:
            self._follow_in_task(Flight(request=request, key=str(self._num_requests), time_added=now))
            self._num_requests += 1

    async def abort(self, requests: Sequence[RequestId]) -> None:
        self._require_open()
        flights = [self._flights[request] for request in requests if request in self._flights]
        for flight in flights:
            flight.stop()
        await self._ask(self._llm.abort([flight.key for flight in flights if flight.is_submitted]))

    async def collect(self) -> Sequence[Response]:
        while True:
            if self._done:
                done, self._done = self._done, []
                return done
            if self._failure is not None:
                raise self._failure
            if self._ended.done():
                return ()
            self._arrival.clear()
            await self._arrival.wait()

    async def progress(self) -> EngineProgress:
        self._require_open()
        return EngineProgress(
            engine=self._engine,
            kv_tokens_capacity=self._totals.kv_tokens_capacity,
            running=tuple(
                RunningRequest(flight.request.request, len(flight.request.prompt_token_ids), flight.num_tokens)
                for flight in self._flights.values()
            ),
        )

    async def increments(self) -> Sequence[TokenIncrement]:
        """Give what vLLM has reported and this method has not; `protocols.members.MemberEngine` says of what."""
        self._require_open()
        gained = (flight.increment(self._policy_version) for flight in self._flights.values())
        return [increment for increment in gained if increment is not None]

    async def load_weights(self, weights: Weights) -> str:
        self._require_open()
        is_kept = self._keeps_requests and bool(self._flights)
        require_loadable(self._engine, 0 if is_kept else len(self._flights), is_asleep=self._is_asleep)
        if not isinstance(weights.payload, WeightOffer):
            check_fit(self._engine, self._tensors, weights.payload)
        if is_kept:
            await self._ask(self._llm.pause_generation(mode="keep", clear_cache=False))
            await self._withdraw_unstarted()
            self._totals.begin_version(len(self._flights))
        self._policy_version = NO_VERSION
        checksum = await self._replace_weights(weights)
        if not self._stands_by:
            await self._take_cache()
        self._policy_version = weights.policy_version
        for flight in self._flights.values():
            flight.may_start.set()
        return checksum

    async def _withdraw_unstarted(self) -> None:
        """Take requests of which vLLM has reported no token out of it, until `may_start` is set again.

        The few tokens that it has not reported yet, which are fewer than `STREAM_INTERVAL`, are generated again.
        """
        flights = [flight for flight in self._flights.values() if not flight.token_ids]
        for flight in flights:
            flight.may_start.clear()
        await self._ask(self._llm.abort([flight.key for flight in flights if flight.is_submitted]))

    async def _take_cache(self) -> None:
        """Become able to generate: the weights are there."""
        await self._ask(self._wake_entirely())
        # vLLM asks this once, within its first request and before it knows of it: an abort meanwhile would be lost
        await self._ask(self._llm.get_supported_tasks())
        if self._keeps_requests:  # after an update that broke off it stays paused until one is whole
            await self._ask(self._llm.resume_generation())
        if not self._drafts_are_tried:
            await self._ask(try_drafts(self._llm, self._totals))
            self._drafts_are_tried = True

    async def _replace_weights(self, weights: Weights) -> str:
        offer, version = weights.payload, weights.policy_version
        fetch = fetch_weights if isinstance(offer, WeightOffer) else send_tensors
        fetched = await self._ask(fetch(self._llm, self._engine, offer, version, keeps_cache=self._keeps_requests))
        check_fit(self._engine, self._tensors, fetched.tensors)
        return fetched.checksum

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        """Count passes under these rules; `drafting` says why they are not followed."""
        self._require_open()
        self._totals.draft_lengths.use(rules)

    async def sleep(self) -> None:
        self._require_open()
        require_idle(self._engine, "sleep", len(self._flights))
        if self._is_asleep:
            return
        self._policy_version = NO_VERSION
        self._is_asleep, self._stands_by = True, False
        # level 2 drops the weights, which are loaded again after waking; level 0 only stops the scheduler
        await self._ask(self._llm.sleep(level=2 if self._has_sleep_mode else 0))

    async def stand_by(self) -> None:
        self._stands_by = True
        await self._wake_for_weights()

    async def wake(self) -> None:
        """Take the memory of the weights back. That of the KV cache follows when they are loaded, or now if they are.

        So a trainer on the same GPUs may hold its own until then.
        """
        stood_by, self._stands_by = self._stands_by, False
        await self._wake_for_weights()
        if stood_by and self._policy_version != NO_VERSION:
            await self._take_cache()

    async def _wake_for_weights(self) -> None:
        self._require_open()
        if not self._is_asleep:
            return
        await self._ask(self._llm.wake_up(["weights"] if self._has_sleep_mode else ["scheduling"]))
        self._is_asleep = False

    async def stats(self) -> EngineStats:
        self._require_open()
        peaks_gb = await self._ask(self._llm.collective_rpc("gpu_memory_peak_gb"))
        totals = self._totals
        return EngineStats(
            kv_tokens_capacity=totals.kv_tokens_capacity,
            num_preemptions=totals.num_preemptions,
            num_generated_tokens=totals.num_generated_tokens,
            num_decode_steps=totals.num_decode_steps,
            busy_slot_steps=totals.busy_slot_steps,
            idle_slot_steps=totals.idle_slot_steps,
            waiting_request_steps=totals.waiting_request_steps,
            kv_token_steps=totals.kv_token_steps,
            policy_version=self._policy_version,
            draft_passes=totals.draft_lengths.totals(),
            num_prefix_query_tokens=totals.num_prefix_query_tokens,
            num_prefix_hit_tokens=totals.num_prefix_hit_tokens,
            gpu_memory_peak_gb=max((peak for peak in peaks_gb if peak is not None), default=None),
        )

    async def close(self) -> None:
        """End vLLM's processes. What is in flight counts as aborted and can still be collected."""
        if not self._is_closing:
            self._is_closing = True
            try:
                if self._failure is None:
                    await self._abort_all()
            finally:
                await asyncio.to_thread(self._llm.shutdown, SHUTDOWN_S)
                del self._llm  # it complains when it is deleted only at the interpreter's end
                self._end()
        await asyncio.shield(self._ended)

    async def _abort_all(self) -> None:
        """Return when every request has ended, or vLLM has, of which `collect` then tells."""
        for flight in self._flights.values():
            flight.stop()
        with contextlib.suppress(EngineDeadError):
            await self._llm.abort([flight.key for flight in self._flights.values() if flight.is_submitted])
        await asyncio.gather(*self._followers, return_exceptions=True)

    # -- one request --

    def _follow_in_task(self, flight: Flight) -> None:
        self._flights[flight.request.request] = flight
        self._totals.in_flight(len(self._flights))
        follower = self._loop.create_task(self._follow(flight))
        self._followers.add(follower)
        follower.add_done_callback(self._followers.discard)

    async def _follow(self, flight: Flight) -> None:
        """Let vLLM generate, and deliver the response."""
        try:
            while not flight.has_ended:
                flight.restart()
                await flight.may_start.wait()
                if flight.is_aborted:
                    flight.finish_reason = FinishReason.ABORTED
                else:
                    await self._submit(flight)
            self._deliver(flight)
        except Exception as error:  # noqa: BLE001  # the task's boundary: `collect` raises it
            self._fail(error)

    async def _submit(self, flight: Flight) -> None:
        """Let vLLM generate until the request ends or is withdrawn."""
        flight.is_submitted = True
        params = sampling_params(flight.request, self._end_tokens)
        salt = str(self._policy_version) if self._keeps_requests else None
        prompt, priority = tokens_input(flight.known_token_ids, cache_salt=salt), flight.request.priority
        async for output in self._llm.generate(prompt, params, flight.key, priority=priority):
            flight.take(output)

    def _deliver(self, flight: Flight) -> None:
        response = self._response(flight)
        del self._flights[flight.request.request]
        self._totals.in_flight(len(self._flights))
        self._done.append(response)
        self._arrival.set()

    def _response(self, flight: Flight) -> Response:
        assert flight.finish_reason is not None, "vLLM's last report of a request says how it ended"
        token_ids, logprobs = flight.response_token_ids(), flight.response_logprobs()
        return Response(
            request=flight.request.request,
            engine=self._engine,
            finish_reason=flight.finish_reason,
            token_ids=token_ids,
            logprobs=logprobs,
            spans=flight.spans,
            queue_time_s=flight.queue_time_s,
            generation_time_s=flight.generation_time_s,
            launch=flight.request.launch,
        )

    # -- vLLM's end --

    async def _ask(self, call: Coroutine[Any, Any, T]) -> T:
        """Await vLLM's answer, or its end: a dead process never answers."""
        question = asyncio.ensure_future(call)
        try:
            await asyncio.wait((question, self._ended), return_when=asyncio.FIRST_COMPLETED)
            if self._failure is not None:
                raise self._failure
            if not question.done():
                raise ImpossibleEvent(f"{self._engine} was closed during a call.")
            return question.result()
        except EngineDeadError as error:
            self._fail(error)
            assert self._failure is not None
            raise self._failure from error
        finally:
            question.cancel()

    def _notice_end(self) -> None:
        """Handle the end of vLLM's outputs, which also follows `close`."""
        if not self._is_closing:
            self._fail(EngineDeadError())

    def _fail(self, error: Exception) -> None:
        """End the engine; the first failure counts."""
        if self._failure is not None:
            return
        if isinstance(error, EngineGenerateError):
            error = error.__cause__ if isinstance(error.__cause__, Exception) else error
        if isinstance(error, EngineDeadError) or self._llm.errored:
            exit_codes = self._llm.engine_core.resources.engine_manager.finished_procs()
            how = "".join(f", {name} with exit code {code}" for name, code in exit_codes.items())
            problem = f"{self._engine} stopped generating: one of vLLM's processes ended{how}."
            self._failure = EngineFailed(problem, "", "The engine's log says more.")
        else:
            self._failure = failure_of(error, f"{self._engine} stopped generating")
        self._failure.__cause__ = error
        self._policy_version = NO_VERSION
        self._end()
        for follower in self._followers:
            follower.cancel()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)
        self._arrival.set()

    # -- what must hold --

    def _require_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._is_closing:
            raise ImpossibleEvent(f"{self._engine} was called after it was closed.")

    async def _wake_entirely(self) -> None:
        if self._has_sleep_mode and await self._llm.is_sleeping():
            await self._llm.wake_up(["kv_cache"])

    def _make_totals(self, vllm_config: VllmConfig, engine_index: int) -> StepTotals:
        self._totals = StepTotals(vllm_config, engine_index)
        return self._totals
