"""Engines and a reward that do what a test says, in its own event loop."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

import numpy as np

from rollpacker.core.commands import DraftRule
from rollpacker.core.errors import EngineFailed
from rollpacker.core.events import DraftPasses, EngineProgress, RunningRequest
from rollpacker.core.ids import EngineId, RequestId, VersionSpan
from rollpacker.protocols.engine import EngineStats
from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, Verdict
from rollpacker.protocols.weights import Weights

DAMAGED = "00000bad"
"""The checksum of weights that arrived damaged."""


async def confirm(weights: Weights) -> str:
    """Take weights at once."""
    return weights.checksum


async def never_confirm(_: Weights) -> str:
    """Accept the call and never answer."""
    return await asyncio.get_running_loop().create_future()


async def damage(_: Weights) -> str:
    """Hold something else than was sent."""
    return DAMAGED


class ScriptedEngine:
    """Finishes each request after as many turns of the event loop as `num_turns` says; None never finishes.

    `on_weights` awaits and answers `load_weights`. After `die` weights are refused.
    """

    def __init__(
        self,
        engine: str,
        num_turns: Callable[[RequestId], int | None],
        *,
        ignores_aborts: bool = False,
        preemptions: Iterator[int] | None = None,
        on_weights: Callable[[Weights], Awaitable[str]] = confirm,
    ):
        self.engine = EngineId(engine)
        self.requests: dict[RequestId, GenerationRequest] = {}
        self.running: dict[RequestId, asyncio.Task[None]] = {}
        self.policy_version = 0
        self.is_asleep = self.stands_by = self.is_closed = False
        self.num_generated_tokens = 0
        self.draft_rules: list[tuple[DraftRule, ...]] = []
        """As they were given, one after the other."""
        self.draft_passes: tuple[DraftPasses, ...] = ()
        """Totals that it reports."""
        self._preemptions = preemptions
        self.on_weights = on_weights
        self._death: EngineFailed | None = None
        self._num_turns = num_turns
        self._ignores_aborts = ignores_aborts
        self._done: asyncio.Queue[Response | EngineFailed] = asyncio.Queue()

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        assert not self.is_asleep
        assert not self.stands_by
        for request in requests:
            assert request.request not in self.running
            self.requests[request.request] = request
            self.running[request.request] = asyncio.create_task(self._run(request.request))

    async def _run(self, request: RequestId) -> None:
        turns = self._num_turns(request)
        if turns is None:
            await asyncio.Event().wait()
        for _ in range(turns):
            await asyncio.sleep(0)
        del self.running[request]
        self._done.put_nowait(self._response(request, FinishReason.STOP, num_tokens=3))

    def _response(self, request: RequestId, reason: FinishReason, num_tokens: int) -> Response:
        self.num_generated_tokens += num_tokens
        return Response(
            request=request,
            engine=self.engine,
            finish_reason=reason,
            token_ids=np.arange(num_tokens, dtype=np.int32),
            logprobs=np.zeros(num_tokens, dtype=np.float32),
            spans=(VersionSpan(policy_version=self.policy_version, num_tokens=num_tokens),),
            queue_time_s=0.0,
            generation_time_s=0.0,
            launch=self.requests[request].launch,
        )

    async def abort(self, requests: Sequence[RequestId]) -> None:
        if self._ignores_aborts:
            return
        for request in requests:
            task = self.running.pop(request, None)
            if task is not None:
                task.cancel()
                self._done.put_nowait(self._response(request, FinishReason.ABORTED, num_tokens=1))

    def die(self) -> None:
        """Lose everything, as a killed process does."""
        for task in self.running.values():
            task.cancel()
        self._death = EngineFailed(f"The process of {self.engine} died.")
        self.fail(self._death)

    def fail(self, error: EngineFailed) -> None:
        """Answer nothing but this error."""
        self._done.put_nowait(error)

    async def collect(self) -> Sequence[Response]:
        first = await self._done.get()
        if isinstance(first, EngineFailed):
            raise first
        return [first]

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        if self._death is not None:
            raise self._death
        self.draft_rules.append(tuple(rules))

    async def load_weights(self, weights: Weights) -> str:
        if self._death is not None:
            raise self._death
        assert not self.running, "weights came while requests were in flight"
        assert not self.is_asleep
        checksum = await self.on_weights(weights)
        self.policy_version = weights.policy_version
        return checksum

    async def sleep(self) -> None:
        assert not self.running
        self.is_asleep, self.stands_by = True, False

    async def stand_by(self) -> None:
        self.is_asleep, self.stands_by = False, True

    async def wake(self) -> None:
        self.is_asleep = self.stands_by = False

    async def progress(self) -> EngineProgress:
        running = tuple(RunningRequest(request, 1, 1) for request in self.running)
        return EngineProgress(engine=self.engine, kv_tokens_capacity=1000, running=running)

    async def stats(self) -> EngineStats:
        return EngineStats(
            kv_tokens_capacity=1000,
            num_preemptions=next(self._preemptions) if self._preemptions else 0,
            num_generated_tokens=self.num_generated_tokens,
            num_decode_steps=0,
            busy_slot_steps=0,
            idle_slot_steps=0,
            policy_version=self.policy_version,
            draft_passes=self.draft_passes,
        )

    async def close(self) -> None:
        self.is_closed = True


class ScriptedReward:
    """Scores with 1.0 at once, or as `score_of` says; `score_of` may raise."""

    def __init__(self, score_of: Callable[[RequestId], float] = lambda _: 1.0):
        self._score_of = score_of
        self._done: asyncio.Queue[Verdict] = asyncio.Queue()
        self.scored: list[RequestId] = []

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        for response in responses:
            self.scored.append(response.request)
            reward = self._score_of(response.request)
            self._done.put_nowait(Verdict(request=response.request, reward=reward, reason="scripted", time_s=0.0))

    async def forget(self) -> None: ...

    async def collect(self) -> Sequence[Verdict]:
        return [await self._done.get()]

    async def close(self) -> None: ...
