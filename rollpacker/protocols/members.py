"""Rollout workers that come and go, and what is asked of their engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rollpacker.protocols.engine import Engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.core.events import NoticeGiven, WorkerArrived, WorkerLeft
    from rollpacker.core.ids import EngineId, WorkerId
    from rollpacker.protocols.rollout import TokenIncrement


class MemberEngine(Engine, Protocol):
    """An engine of a worker: it may be gone at any time, so what it generates is told as it comes."""

    async def increments(self) -> Sequence[TokenIncrement]:
        """Wait for new tokens, `elastic.report_interval_s` at most, and give them in order; none is a sign of life."""


class Members(Protocol):
    """Provides rollout workers. No call raises for a worker that is gone, but `start_engine`."""

    async def changes(self) -> Sequence[WorkerArrived | NoticeGiven | WorkerLeft]:
        """Wait until something changes, and tell all that has, in order."""

    async def start_engine(self, worker: WorkerId, engine: EngineId) -> MemberEngine:
        """Start an engine on a worker: awake, without a policy.

        Raises:
            RollpackerError: It did not start.
        """

    async def dismiss(self, worker: WorkerId, reason: str, *, may_return: bool) -> None:
        """End the engines of a worker and let it go; `changes` tells when it is gone."""

    async def wish(self, num_workers: int) -> None:
        """Have so many workers, as far as the cluster has room for them."""
