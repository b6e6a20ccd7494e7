"""Sends each response to the worker of its domain, so that one run may hold domains with different rewards.

Invariant: each request goes to exactly one worker, and its verdict comes back from `collect` exactly once. A domain
that no worker is named for goes to the default one. A worker that fails makes `collect` raise what it raised.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from rollpacker.rewards.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rollpacker.core.ids import Domain
    from rollpacker.protocols.reward import RewardWorker, ScoringRequest
    from rollpacker.protocols.rollout import Verdict


class RoutingRewardWorker:
    """Several reward workers as one; it owns them. Domains may share a worker."""

    def __init__(self, default: RewardWorker, by_domain: Mapping[Domain, RewardWorker]) -> None:
        self._default = default
        self._by_domain = dict(by_domain)
        self._workers = tuple(dict.fromkeys([default, *by_domain.values()]))
        self._outbox = Outbox()
        self._collectors: list[asyncio.Task[None]] = []

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        shares: dict[RewardWorker, list[ScoringRequest]] = {}
        for request in requests:
            shares.setdefault(self._by_domain.get(request.domain, self._default), []).append(request)
        if not self._collectors:
            self._collectors = [asyncio.create_task(self._collect_from(worker)) for worker in self._workers]
        for worker, share in shares.items():
            await worker.score(share)

    async def forget(self) -> None:
        for worker in self._workers:
            await worker.forget()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are."""
        return await self._outbox.collect()

    async def close(self) -> None:
        """Close every worker, also when one fails to; a pending `collect` returns."""
        self._outbox.close()
        for collector in self._collectors:
            collector.cancel()
        await asyncio.gather(*self._collectors, return_exceptions=True)
        failures = await asyncio.gather(*(worker.close() for worker in self._workers), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    async def _collect_from(self, worker: RewardWorker) -> None:
        try:
            while True:
                self._outbox.put(await worker.collect())
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or it would be lost
            self._outbox.fail(error)
