"""Several reward workers as one: each domain has a reward of its own, and a reward may be the sum of parts.

Invariant: the verdict on a request comes back from `collect` exactly once, unless it was forgotten. A worker that fails
makes `collect` raise what it raised.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import Verdict
from rollpacker.protocols.tasks import end_tasks
from rollpacker.rewards.functions import SCORED
from rollpacker.rewards.scores import has_failed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rollpacker.core.ids import Domain, RequestId
    from rollpacker.protocols.reward import RewardWorker, ScoringRequest


class _CombinedRewardWorker(ABC):
    """Hands requests to workers that it owns."""

    def __init__(self, workers: Iterable[RewardWorker]) -> None:
        self._workers = tuple(dict.fromkeys(workers))
        self._outbox: Arrivals[Verdict] = Arrivals()
        self._collectors: list[asyncio.Task[None]] = []

    async def score(self, requests: Sequence[ScoringRequest]) -> None:
        if not self._collectors:
            self._collectors = [asyncio.create_task(self._collect_from(worker)) for worker in self._workers]
        for worker, share in self._shares(requests).items():
            await worker.score(share)

    @abstractmethod
    def _shares(self, requests: Sequence[ScoringRequest]) -> Mapping[RewardWorker, Sequence[ScoringRequest]]:
        """What each worker has to score."""

    @abstractmethod
    def _complete(self, worker: RewardWorker, verdicts: Sequence[Verdict]) -> Iterable[Verdict]:
        """The verdicts that are complete with these of a worker."""

    async def forget(self) -> None:
        for worker in self._workers:
            await worker.forget()

    async def collect(self) -> Sequence[Verdict]:
        """Wait until at least one verdict is there, and take all that are."""
        return await self._outbox.collect()

    async def close(self) -> None:
        """Close every worker, also when one fails to; a pending `collect` returns."""
        self._outbox.close()
        await end_tasks(*self._collectors)
        failures = await asyncio.gather(*(worker.close() for worker in self._workers), return_exceptions=True)
        for failure in failures:
            if failure is not None:
                raise failure

    async def _collect_from(self, worker: RewardWorker) -> None:
        try:
            while True:
                self._outbox.put(self._complete(worker, await worker.collect()))
        except Exception as error:  # noqa: BLE001 a task's boundary: `collect` raises it, or it would be lost
            self._outbox.fail(error)


class RoutingRewardWorker(_CombinedRewardWorker):
    """Sends each response to the worker of its domain, or to the default one. Domains may share a worker."""

    def __init__(self, default: RewardWorker, by_domain: Mapping[Domain, RewardWorker]) -> None:
        super().__init__([default, *by_domain.values()])
        self._default = default
        self._by_domain = dict(by_domain)

    def _shares(self, requests: Sequence[ScoringRequest]) -> Mapping[RewardWorker, Sequence[ScoringRequest]]:
        shares: dict[RewardWorker, list[ScoringRequest]] = {}
        for request in requests:
            shares.setdefault(self._by_domain.get(request.domain, self._default), []).append(request)
        return shares

    def _complete(self, worker: RewardWorker, verdicts: Sequence[Verdict]) -> Iterable[Verdict]:  # noqa: ARG002
        return verdicts  # of any worker


class SummingRewardWorker(_CombinedRewardWorker):
    """Has each response scored by every part. The reward is the weighted sum.

    The reason is that of the first part whose check failed; where none did, that of the first part that gives one. A
    verdict with a failed check has no case runs: `has_failed` would take its `timeout` for that of a program.

    Args:
        parts: A worker and a weight by the name of the part.
    """

    def __init__(self, parts: Mapping[str, tuple[RewardWorker, float]]) -> None:
        super().__init__(worker for worker, _ in parts.values())
        self._names = {worker: name for name, (worker, _) in parts.items()}
        self._weights = {name: weight for name, (_, weight) in parts.items()}
        self._open: dict[RequestId, dict[str, Verdict]] = {}

    async def forget(self) -> None:
        """Drop what has no verdict of every part."""
        self._open.clear()
        await super().forget()

    def _shares(self, requests: Sequence[ScoringRequest]) -> Mapping[RewardWorker, Sequence[ScoringRequest]]:
        self._open |= {request.request: {} for request in requests}
        return dict.fromkeys(self._workers, requests)

    def _complete(self, worker: RewardWorker, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
        for verdict in verdicts:
            scored = self._open.get(verdict.request)
            if scored is None:
                continue  # it was forgotten
            scored[self._names[worker]] = verdict
            if len(scored) == len(self._weights):
                yield self._sum(self._open.pop(verdict.request))

    def _sum(self, scored: Mapping[str, Verdict]) -> Verdict:
        by_part = [(name, scored[name]) for name in self._weights]
        verdicts = [verdict for _, verdict in by_part]
        reasons = [verdict.reason for verdict in verdicts]
        failures = [verdict.reason for verdict in verdicts if has_failed(verdict)]
        own = [reason for reason in reasons if reason != SCORED]
        of_parts = {name: verdict.reward for name, verdict in by_part}
        inner = {f"{name}.{each}": value for name, verdict in by_part for each, value in verdict.parts.items()}
        return Verdict(
            request=verdicts[0].request,
            reward=math.fsum(weight * scored[name].reward for name, weight in self._weights.items()),
            reason=(failures or own or reasons)[0],
            time_s=max(each.time_s for each in verdicts),
            case_runs=() if failures else next((each.case_runs for each in verdicts if each.case_runs), ()),
            parts=of_parts | inner | of_parts,  # a part `a.b` goes before the `b` that part `a` returned
        )
