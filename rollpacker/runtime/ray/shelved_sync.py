"""The sync of a run that takes rollout workers: local engines as ever, and a shelf from which members pull.

    lay_out ──> the shelf (`transfer.shelf`) ──pulled by members, each when it can──> their engines
       └──────> publish ──────────────────────────────────────────────────────────> local engines

Invariant: one policy lies on the shelf, the newest; nobody waits for a member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.weights import Published, Weights, WeightSync
from rollpacker.runtime.ray.trainer_group import TrainerGroup


class ShelvedSync:
    """Implements `rollpacker.protocols.weights.WeightSync` over another one, and `Shelf` over the trainer's ranks.

    Args:
        sync: Of local engines.
        group: All ranks of the trainer.
        bucket_mb: Of the shelf, MiB. Local engines that fetch from the trainer get the same buckets.
    """

    def __init__(self, sync: WeightSync, group: TrainerGroup, bucket_mb: int) -> None:
        self._sync = sync
        self._all = group
        self._bucket_bytes = bucket_mb << 20
        self._laid_out: Weights | None = None
        self._is_prepared = False
        self._one_at_a_time = asyncio.Lock()
        """The trainer packs the next policy into the memory that engines are served from."""
        self._filling = asyncio.Lock()

    async def prepare(self) -> None:
        async with self._one_at_a_time:
            await self._fill()
            await self._sync.prepare()
            self._is_prepared = True

    async def lay_out(self) -> int:
        async with self._one_at_a_time:
            return await self._fill() if self._laid_out is None or not self._is_prepared else self._newest

    async def shelf(self, policy_version: int) -> Weights | None:
        async with self._filling:  # after a checkpoint the same version is laid out again
            laid_out = self._laid_out
        return laid_out if laid_out is not None and laid_out.policy_version == policy_version else None

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        async with self._one_at_a_time:
            self._is_prepared = False
            return await self._sync.publish(engines)

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        async with self._one_at_a_time:
            return await self._sync.serve(engine_id, engine)

    @property
    def _newest(self) -> int:
        assert self._laid_out is not None
        return self._laid_out.policy_version

    async def _fill(self) -> int:
        async with self._filling:
            self._laid_out = None  # so that the buckets before are freed as soon as nobody pulls them
            laid_out: Weights | None = await self._all.everywhere(lambda rank: rank.lay_out_weights(self._bucket_bytes))
            assert laid_out is not None, "the first rank answers"
            self._laid_out = laid_out
        return laid_out.policy_version
