"""The embedded engine: `protocols.engine.Engine` around a decoder in one thread.

Orders are taken between decode steps, in the order in which they were given; when nothing is in flight the thread
sleeps until the next one. An exception in the thread ends it and is raised from `collect`, and from everything after.

States of the policy: none (fresh, or just woken) -> held (weights loaded) -> asleep. Requests are taken only while a
policy is held, weights change only while nothing is in flight, so what it generates of a response has one version. An
engine that keeps requests (`system.interrupt=keep`) takes weights between two passes, and goes on with the cache that
it has; its responses say which version sampled each token.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.commands import DraftRule
from rollpacker.core.errors import EngineFailed, ImpossibleEvent
from rollpacker.core.events import EngineProgress
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
from rollpacker.engines.torch.decoder import Decoder
from rollpacker.engines.torch.history import History
from rollpacker.engines.torch.model_files import fix_longrope, load_model
from rollpacker.engines.torch.sequences import Generation
from rollpacker.engines.torch.servable import require_verifiable
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.gpu_memory import gpu_memory_peak_gb, reset_gpu_memory_peak
from rollpacker.protocols.rollout import GenerationRequest, Response, TokenIncrement, spans_after
from rollpacker.protocols.tensors import checksum_of_tensors, named_tensors
from rollpacker.protocols.weights import Weights
from rollpacker.transfer.offers import ReceiverName, WeightOffer
from rollpacker.transfer.receiver import receive_weights

T = TypeVar("T")


class TorchEngine:
    """Generates with torch and transformers, in this process.

    Args:
        engine: Its name in responses.
        model_path: A local Hugging Face directory.
        section: Slots and threads.
        max_tokens_per_seq: Prompt and response together.
        dtype: A torch dtype by name, such as `float32`.
        drafts: Whether it proposes draft tokens from what it wrote before, and verifies them as it is told.
        keeps_requests: Whether it takes weights with requests in flight.

    Raises:
        ModelError: The directory holds no model that this engine can serve, or verify drafts of.
    """

    def __init__(
        self,
        engine: EngineId,
        model_path: Path,
        section: EngineSection,
        max_tokens_per_seq: int,
        dtype: str,
        *,
        drafts: bool = False,
        keeps_requests: bool = False,
    ) -> None:
        self._engine = engine
        self._num_threads = section.num_threads
        self._keeps_requests = keeps_requests
        self._model = load_model(model_path, dtype)
        if drafts:
            require_verifiable(self._model)
        # a model with learned positions has no embedding for later ones
        self._max_tokens_per_seq = min(max_tokens_per_seq, max_positions(self._model.config) or max_tokens_per_seq)
        fix_longrope(self._model, self._max_tokens_per_seq)
        self._max_num_seqs = section.max_num_seqs
        self._decoder = Decoder(
            self._model,
            max_num_seqs=section.max_num_seqs,
            max_tokens_per_seq=self._max_tokens_per_seq,
            eos_token_ids=end_tokens(model_path),
            clock=time.monotonic,
            history=History(section.max_num_seqs, self._max_tokens_per_seq) if drafts else None,
        )
        # written by the thread alone
        self._tensors = named_tensors(self._model)
        self._shapes: list[tuple[torch.nn.Parameter, torch.Size]] = []
        self._policy_version = NO_VERSION
        self._is_asleep = False
        # shared; guarded by the condition
        self._changed = threading.Condition()
        self._orders: list[_Order] = []
        self._done: list[Response] = []
        self._collectors: list[Future[None]] = []
        self._is_closing = False
        self._has_ended = False
        self._failure: EngineFailed | None = None
        self._thread = threading.Thread(target=self._run, name=f"decode-{engine}", daemon=True)
        self._thread.start()

    # -- what the driver calls --

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        require_policy(self._engine, self._policy_version)
        check_ids(requests)
        for request in requests:
            check_request(request, self._max_tokens_per_seq)
            check_begun(self._engine, request, self._policy_version)
        now = time.monotonic()
        self._order(lambda: self._add(requests, now))

    async def abort(self, requests: Sequence[RequestId]) -> None:
        self._order(lambda: self._deliver(self._decoder.abort(requests)))

    async def collect(self) -> Sequence[Response]:
        while True:
            with self._changed:
                if self._done:
                    done, self._done = self._done, []
                    return done
                if self._failure is not None:
                    raise self._failure
                if self._has_ended:
                    return ()
                arrival: Future[None] = Future()
                self._collectors.append(arrival)
            await asyncio.wrap_future(arrival)

    async def progress(self) -> EngineProgress:
        return await self._ask(self._progress)

    async def increments(self) -> Sequence[TokenIncrement]:
        """Give what is new between two decode steps; `protocols.members.MemberEngine` says of what."""
        return await self._ask(self._increments)

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        self._order(lambda: self._decoder.draft_lengths.use(rules))

    async def load_weights(self, weights: Weights) -> str:
        return await self._ask(lambda: self._load(weights))

    async def sleep(self) -> None:
        await self._ask(self._free_memory)

    async def stand_by(self) -> None:
        await self._ask(self._take_memory)  # the KV cache grows with the sequences

    async def wake(self) -> None:
        await self._ask(self._take_memory)

    async def stats(self) -> EngineStats:
        return await self._ask(self._stats)

    async def close(self) -> None:
        """End the thread. What is in flight counts as aborted and can still be collected."""
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        await asyncio.to_thread(self._thread.join)

    # -- from the caller's thread into the engine's --

    def _order(self, action: Callable[[], None]) -> None:
        """Let the thread do something between two decode steps. What it raises ends the engine."""
        self._post(_Order(action=action, give_up=lambda _: None))

    async def _ask(self, question: Callable[[], T]) -> T:
        """Let the thread compute something between two decode steps. What it raises is the caller's."""
        answer: Future[T] = Future()

        def action() -> None:
            if not answer.set_running_or_notify_cancel():
                return
            try:
                answer.set_result(question())
            except Exception as error:  # noqa: BLE001  # raised in the caller
                answer.set_exception(error)

        def give_up(failure: EngineFailed | None) -> None:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(failure)

        self._post(_Order(action=action, give_up=give_up))
        return await asyncio.wrap_future(answer)

    def _post(self, order: _Order) -> None:
        with self._changed:
            if self._failure is not None:
                raise self._failure
            if self._is_closing:
                raise ImpossibleEvent(f"{self._engine} was called after it was closed.")
            self._orders.append(order)
            self._changed.notify()

    # -- the thread --

    def _run(self) -> None:
        torch.set_num_threads(self._num_threads)  # holds per thread
        try:
            while self._carry_out_orders():
                if self._can_decode:
                    self._deliver(self._decoder.step())
            self._deliver(self._decoder.abort_all())
        except Exception as error:  # noqa: BLE001  # the thread's boundary: `collect` raises it
            failure = failure_of(error, f"{self._engine} stopped generating")
            failure.__cause__ = error
            self._end(failure)
        else:
            self._end(None)

    def _carry_out_orders(self) -> bool:
        """Wait for work and carry out the orders; False when the engine is closing."""
        with self._changed:
            self._changed.wait_for(lambda: self._orders or self._is_closing or self._can_decode)
            orders, self._orders = deque(self._orders), []
            is_closing = self._is_closing
        try:
            while orders:
                orders.popleft().action()
        finally:  # behind one that raised there are questions to answer
            with self._changed:
                self._orders[:0] = orders
        return not is_closing

    @property
    def _can_decode(self) -> bool:
        """False, too, after an update that broke off, until the next one."""
        return self._policy_version != NO_VERSION and not self._decoder.is_idle

    def _deliver(self, generations: Sequence[Generation]) -> None:
        if not generations:
            return
        responses = [self._response(generation) for generation in generations]
        with self._changed:
            self._done += responses
            self._wake_collectors()

    def _end(self, failure: EngineFailed | None) -> None:
        with self._changed:
            self._failure = failure
            self._has_ended = True
            orders, self._orders = self._orders, []
            self._wake_collectors()
        for order in orders:
            order.give_up(failure)

    def _wake_collectors(self) -> None:
        for arrival in self._collectors:
            if arrival.set_running_or_notify_cancel():
                arrival.set_result(None)
        self._collectors = []

    # -- orders, carried out by the thread --

    def _add(self, requests: Sequence[GenerationRequest], time_added: float) -> None:
        for request in requests:
            self._decoder.add(request, time_added)

    def _response(self, generation: Generation) -> Response:
        return Response(
            request=generation.request,
            engine=self._engine,
            finish_reason=generation.finish_reason,
            token_ids=generation.token_ids,
            logprobs=generation.logprobs,
            spans=spans_after(generation.begun, self._policy_version, len(generation.token_ids)),
            queue_time_s=generation.queue_time_s,
            generation_time_s=generation.generation_time_s,
            launch=generation.launch,
        )

    def _load(self, weights: Weights) -> str:
        num_to_end = 0 if self._keeps_requests else self._decoder.num_in_flight
        require_loadable(self._engine, num_to_end, is_asleep=self._is_asleep)
        if self._policy_version != NO_VERSION:
            self._decoder.end_version(self._policy_version)
        reset_gpu_memory_peak()
        loader = _InPlaceLoader(self._engine, self._tensors)
        if isinstance(weights.payload, WeightOffer):
            self._policy_version = NO_VERSION  # until the last bucket is there
            name = ReceiverName(engine=self._engine, rank=0, num_ranks=1)
            receive_weights(weights.payload, name, loader, next(iter(self._tensors.values())).device)
        else:
            loader.load_all(weights.payload)
        self._policy_version = weights.policy_version
        return checksum_of_tensors(self._tensors)

    def _free_memory(self) -> None:
        require_idle(self._engine, "sleep", self._decoder.num_in_flight)
        if self._is_asleep:
            return
        self._decoder.release()
        # tied tensors are one parameter, so they stay tied
        self._shapes = [(parameter, parameter.shape) for parameter in self._model.parameters()]
        self._tensors = {}
        for parameter, _ in self._shapes:
            parameter.data = parameter.data.new_empty(0)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what torch keeps for later would be missing to the trainer's process
        self._is_asleep = True
        self._policy_version = NO_VERSION

    def _take_memory(self) -> None:
        if not self._is_asleep:
            return
        for parameter, shape in self._shapes:
            parameter.data = parameter.data.new_empty(shape)
        self._tensors = named_tensors(self._model)
        self._is_asleep = False

    def _progress(self) -> EngineProgress:
        return EngineProgress(
            engine=self._engine,
            kv_tokens_capacity=self._max_num_seqs * self._max_tokens_per_seq,
            running=self._decoder.progress(),
        )

    def _increments(self) -> Sequence[TokenIncrement]:
        return [
            TokenIncrement(
                request=request,
                first_index=first_index,
                token_ids=token_ids,
                logprobs=logprobs,
                policy_version=self._policy_version,
            )
            for request, first_index, token_ids, logprobs in self._decoder.increments()
        ]

    def _stats(self) -> EngineStats:
        decoder = self._decoder
        return EngineStats(
            kv_tokens_capacity=self._max_num_seqs * self._max_tokens_per_seq,
            num_preemptions=0,
            num_generated_tokens=decoder.num_generated_tokens,
            num_decode_steps=decoder.num_decode_steps,
            busy_slot_steps=decoder.busy_slot_steps,
            idle_slot_steps=decoder.idle_slot_steps,
            waiting_request_steps=decoder.waiting_request_steps,
            kv_token_steps=decoder.kv_token_steps,
            policy_version=self._policy_version,
            draft_passes=decoder.draft_lengths.totals(),
            gpu_memory_peak_gb=gpu_memory_peak_gb(),
        )


class _InPlaceLoader:
    """Copies weights into a model's tensors; implements `rollpacker.transfer.receiver.Loader`."""

    keeps_tensors = False

    def __init__(self, engine: EngineId, tensors: Mapping[str, torch.Tensor]) -> None:
        self._engine = engine
        self._tensors = tensors
        self._loaded: set[str] = set()

    def load_all(self, given: Mapping[str, torch.Tensor]) -> None:
        """Load tensors that are all there; raises `WeightSyncFailed` before the first one is touched."""
        check_fit(self._engine, self._tensors, given)
        self.load(list(given.items()))

    def begin(self) -> None:
        self._loaded = set()

    @torch.no_grad()
    def load(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        given = dict(tensors)
        held = {name: tensor for name, tensor in self._tensors.items() if name in given}
        check_fit(self._engine, held, given)
        for name, tensor in held.items():
            tensor.copy_(given[name])
        self._loaded |= given.keys()

    def finish(self) -> None:
        loaded = {name: tensor for name, tensor in self._tensors.items() if name in self._loaded}
        check_fit(self._engine, self._tensors, loaded)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """An action for the thread."""

    action: Callable[[], None]
    give_up: Callable[[EngineFailed | None], None]
    """Called instead if the engine failed before."""
