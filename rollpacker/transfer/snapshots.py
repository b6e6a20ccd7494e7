"""Weights as a snapshot: the trainer copies its policy once, and every engine loads the copy.

The copy outlives the sync, so that a later engine is served without the trainer, which may sleep.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.protocols.weights import Published
from rollpacker.transfer.confirmations import those_that_do_not_confirm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.core.ids import EngineId
    from rollpacker.protocols.engine import Engine
    from rollpacker.protocols.weights import Weights


class Exporter(Protocol):
    """What a snapshot is asked of: a trainer."""

    async def export_weights(self) -> Weights: ...


class SnapshotSync:
    """Implements `rollpacker.protocols.weights.WeightSync` and `Shelf` over `export_weights` and `load_weights`.

    Args:
        trainer: Exports the snapshots.
        straggler_s: How much longer than half of the engines another one may take.
    """

    def __init__(self, trainer: Exporter, straggler_s: float) -> None:
        self._trainer = trainer
        self._straggler_s = straggler_s
        self._newest: Weights | None = None
        self._is_prepared = False

    async def prepare(self) -> None:
        self._newest = await self._trainer.export_weights()
        self._is_prepared = True

    async def publish(self, engines: Mapping[EngineId, Engine]) -> Published:
        began = asyncio.get_running_loop().time()
        if self._newest is None or not self._is_prepared:
            self._newest = await self._trainer.export_weights()
        self._is_prepared = False
        return await self._load_into(engines, self._newest, began, are_all=True)

    async def serve(self, engine_id: EngineId, engine: Engine) -> Published:
        if self._newest is None:
            raise ImpossibleEvent(f"{engine_id} asked for weights before any were published.", "Publish them first.")
        began = asyncio.get_running_loop().time()
        return await self._load_into({engine_id: engine}, self._newest, began, are_all=False)

    async def lay_out(self) -> int:
        if self._newest is None or not self._is_prepared:
            await self.prepare()
        assert self._newest is not None
        return self._newest.policy_version

    async def shelf(self, policy_version: int) -> Weights | None:
        return self._newest if self._newest is not None and self._newest.policy_version == policy_version else None

    async def _load_into(
        self, engines: Mapping[EngineId, Engine], weights: Weights, began: float, *, are_all: bool
    ) -> Published:
        """Load a snapshot into engines, all at once. `began` is the loop's time at which the sync began."""
        lost = await those_that_do_not_confirm(
            {engine_id: engine.load_weights(weights) for engine_id, engine in engines.items()},
            policy_version=weights.policy_version,
            checksum=weights.checksum,
            straggler_s=self._straggler_s,
            are_all=are_all,
        )
        return Published(
            policy_version=weights.policy_version,
            checksum=weights.checksum,
            num_bytes=weights.num_bytes,
            time_s=asyncio.get_running_loop().time() - began,
            lost=lost,
        )
