"""Calls between processes, as a profile measured them: the modelled side of `runtime/ray/remote.py`.

Invariant: what a call carries arrives unchanged and in order; it only takes time. Half of an empty call passes before
its work, half after it. An answer to `collect` comes at least `collect_interval_s` after the one before. An engine's
first passes with the first policy take `first_rollout_s` longer; a resumed run goes on as if it had never stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollpacker.protocols.arrivals import Pace

if TYPE_CHECKING:
    from rollpacker.core.commands import DraftRule
    from rollpacker.core.events import EngineProgress
    from rollpacker.core.ids import RequestId
    from rollpacker.protocols.engine import Engine, EngineStats
    from rollpacker.protocols.reward import ResponseToScore, RewardService
    from rollpacker.protocols.rollout import GenerationRequest, Response, Verdict
    from rollpacker.protocols.weights import Weights
    from rollpacker.sim.profile import CallCosts


_INSTANT_S = 1e-6
"""Verdicts within it count as immediate: in reality, they come before the event loop handles the next answer."""


class CalledEngine:
    """An engine in another process; implements `protocols.engine.Engine`."""

    def __init__(self, engine: Engine, costs: CallCosts) -> None:
        self._engine = engine
        self._costs = costs
        self._half_s = costs.call_s / 2
        self._pace = Pace(costs.collect_interval_s)
        self._warm_up_s = 0.0

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        warm_up_s, self._warm_up_s = self._warm_up_s, 0.0
        await asyncio.sleep(max(self._costs.request(len(requests)) - self._half_s, self._half_s) + warm_up_s)
        await self._engine.generate(requests)
        await asyncio.sleep(self._half_s)

    async def abort(self, requests: Sequence[RequestId]) -> None:
        await asyncio.sleep(self._half_s)
        await self._engine.abort(requests)
        await asyncio.sleep(self._half_s)

    async def collect(self) -> Sequence[Response]:
        await asyncio.sleep(self._half_s)
        await self._pace.wait()
        responses = await self._engine.collect()
        self._pace.answered()
        await asyncio.sleep(self._costs.response(len(responses)))
        return responses

    async def progress(self) -> EngineProgress:
        await asyncio.sleep(self._half_s)
        progress = await self._engine.progress()
        await asyncio.sleep(self._half_s)
        return progress

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        await asyncio.sleep(self._half_s)
        await self._engine.use_draft_lengths(rules)
        await asyncio.sleep(self._half_s)

    async def load_weights(self, weights: Weights) -> str:
        if weights.policy_version == 0:
            self._warm_up_s = self._costs.first_rollout_s
        return await self._engine.load_weights(weights)  # its time was measured whole

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def stand_by(self) -> None:
        await self._engine.stand_by()

    async def wake(self) -> None:
        await self._engine.wake()

    async def stats(self) -> EngineStats:
        await asyncio.sleep(self._half_s)
        stats = await self._engine.stats()
        await asyncio.sleep(self._half_s)
        return stats

    async def close(self) -> None:
        await self._engine.close()


class CalledReward:
    """A reward service in another process; implements `protocols.reward.RewardService`."""

    def __init__(self, reward: RewardService, costs: CallCosts) -> None:
        self._reward = reward
        self._costs = costs
        self._next: asyncio.Task[Sequence[Verdict]] | None = None
        """A `collect` of the reward that is not awaited yet."""
        self._half_s = costs.call_s / 2
        self._pace = Pace(costs.collect_interval_s)

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        num_tokens = sum(len(response.token_ids) for response in responses)
        await asyncio.sleep(max(self._costs.reward(len(responses), num_tokens) - self._half_s, self._half_s))
        await self._reward.score(responses)
        await asyncio.sleep(self._half_s)

    async def forget(self) -> None:
        await asyncio.sleep(self._half_s)
        await self._reward.forget()
        await asyncio.sleep(self._half_s)

    async def collect(self) -> Sequence[Verdict]:
        await asyncio.sleep(self._half_s)
        await self._pace.wait()
        verdicts = list(await (self._next or asyncio.create_task(self._reward.collect())))
        while True:
            self._next = asyncio.create_task(self._reward.collect())
            done, _ = await asyncio.wait({self._next}, timeout=_INSTANT_S)
            more = self._next.result() if done else ()
            if not more:
                break
            verdicts += more
        self._pace.answered()
        await asyncio.sleep(self._half_s)
        return verdicts

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
        await self._reward.close()
