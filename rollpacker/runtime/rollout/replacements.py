"""Engines in the place of those that were lost, with the weights that they need before they can be taken.

    StartEngine (core/restarts.py) ──> started ──> weights ──> ready ──> taken
                                          └──its set leaves──> taken, without weights

Invariant: an engine that is taken for a round holds the round's policy, by its checksum. Serving one and publishing to
all exclude each other; from the moment at which an engine is ready, it is published to as all others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.starts import Starts, within_or_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """An engine that can be taken."""

    engine: Engine
    policy_version: int | None
    """None until the weights are published that are due."""
    kv_tokens: int
    """Capacity of its KV cache."""


class Replacements:
    """Starts engines, and keeps those that are ready.

    Args:
        parts: Start a fresh engine, where the backend can, and say how long it may take.
        on_ready: Told of an engine that can be taken.
        on_failed: Told of an engine that did not start, and why.
        on_error: Told of an error that is no engine's failure.
    """

    def __init__(
        self,
        parts: FleetParts,
        *,
        on_ready: Callable[[EngineId], None],
        on_failed: Callable[[EngineId, RollpackerError], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._replace = parts.replace_engine
        self._limit = parts.limit
        self._start_s = parts.deadlines.start_s
        self._serve_s = parts.deadlines.train_s + parts.deadlines.weight_sync_s
        """For the weights to reach an engine; the trainer, which sends them, may be busy."""
        self._straggler_s = parts.straggler_s
        self.starts = Starts(self._start, on_started=on_ready, on_failed=on_failed, on_error=on_error)
        self._started: dict[EngineId, Ready] = {}
        """Those that wait for their weights, or get them."""
        self._ready: dict[EngineId, Ready] = {}
        self._sync: WeightSync | None = None
        self._syncing = asyncio.Lock()
        self._serving: asyncio.Task[Published] | None = None
        self._are_weights_due = False

    @property
    def can_replace(self) -> bool:
        """Whether the backend can start engines."""
        return self._replace is not None

    # Engines that are ready

    @property
    def ready(self) -> list[EngineId]:
        """The engines that can be taken."""
        return list(self._ready)

    def take(self, engine: EngineId, policy_version: int) -> Ready | None:
        """Take an engine that is ready; None if it was taken before, or holds what is to be published next."""
        ready = self._ready.get(engine)
        if ready is None or ready.policy_version != policy_version:
            return None
        return self._ready.pop(engine)

    def withdraw(self) -> Mapping[EngineId, Ready]:
        """Take the engines that wait for weights while others are being published: their set leaves."""
        started, self._started = self._started, {}
        for name in started:
            self.starts.cancel(name)
        return started

    @asynccontextmanager
    async def publishing(self, sync: WeightSync) -> AsyncIterator[Mapping[EngineId, Ready]]:
        """Let new weights be published inside, while no engine is served; gives those that are ready, to be taken."""
        self._are_weights_due = True
        try:
            await self._end_serving()
            async with self._syncing:
                self._sync = sync
                ready, self._ready = self._ready, {}
                self._are_weights_due = False
                yield ready
        finally:
            self._are_weights_due = False

    async def _end_serving(self) -> None:
        """Wait for the engine that is served now, but not for long."""
        serving = self._serving
        if serving is not None:
            await asyncio.wait([serving], timeout=self._straggler_s)
            serving.cancel()

    # Filling a slot

    async def _start(self, slot: EngineId, name: EngineId) -> None:
        """Start an engine and give it the policy that was published last."""
        assert self._replace is not None
        engine = await within_or_failed(self._limit, self._start_s, f"{name} to start", self._replace(slot, name))
        stats = await within_or_failed(self._limit, self._start_s, f"the statistics of {name}", engine.stats())
        self._started[name] = started = Ready(engine=engine, policy_version=None, kv_tokens=stats.kv_tokens_capacity)
        try:
            async with self._syncing:
                # weights that are due are published to all that are ready when this lock is free
                policy_version = None if self._are_weights_due else await self._serve(name, engine)
                self._ready[name] = replace(started, policy_version=policy_version)
        finally:
            self._started.pop(name, None)

    async def _serve(self, name: EngineId, engine: Engine) -> int:
        """Give an engine the policy; gives the version that it holds then."""
        assert self._sync is not None
        self._serving = serving = asyncio.create_task(self._sync.serve(name, engine), name=f"weights of {name}")
        try:
            await asyncio.wait([serving], timeout=self._serve_s)
            if not serving.done() or serving.cancelled():
                raise EngineFailed(f"{name} has not loaded the weights in time.", "Limits are in backend.deadlines.")
            published = serving.result()
            if name in published.lost:
                raise published.lost[name]
            return published.policy_version
        finally:
            self._serving = None
            await end_tasks(serving)
