"""A modelled reward service: so many workers, each judging one response at a time, first come first served.

Invariant: each response has one verdict. Verdict and time of judging are the workload's and depend on the request
alone; only the waiting depends on what else is judged. A time over the limit ends at the limit, with reason `timeout`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rollpacker.protocols.reward import ResponseToScore
from rollpacker.protocols.rollout import Verdict
from rollpacker.sim.arrivals import Arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What judging a response comes to, and how long it would take without a limit."""

    reward: float
    reason: str
    time_s: float


class ModelledReward:
    """Judges by the workload.

    Args:
        num_workers: Responses judged at the same time.
        timeout_s: The limit of one judgement.
        judgement_of: What becomes of each response.
    """

    def __init__(
        self, *, num_workers: int, timeout_s: float, judgement_of: Callable[[ResponseToScore], Judgement]
    ) -> None:
        self._timeout_s = timeout_s
        self._judgement_of = judgement_of
        self._loop = asyncio.get_running_loop()
        self._free_at_s = [0.0] * num_workers
        """Heap: when each worker is next free."""
        self._arrivals: Arrivals[Verdict] = Arrivals()

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        for response in responses:
            verdict = self._verdict(response)
            ends_at_s = max(self._free_at_s[0], self._loop.time()) + verdict.time_s
            heapq.heapreplace(self._free_at_s, ends_at_s)
            self._loop.call_at(ends_at_s, self._arrivals.put, [verdict])

    def _verdict(self, response: ResponseToScore) -> Verdict:
        judgement = self._judgement_of(response)
        if judgement.time_s > self._timeout_s:
            return Verdict(request=response.request, reward=0.0, reason="timeout", time_s=self._timeout_s)
        return Verdict(
            request=response.request, reward=judgement.reward, reason=judgement.reason, time_s=judgement.time_s
        )

    async def collect(self) -> Sequence[Verdict]:
        return await self._arrivals.collect()

    async def close(self) -> None:
        self._arrivals.close()
