"""Engines in the place of those that were lost, with the weights that they need before they can be taken.

    lost ──> a restart (restarts.py) ──> started ──> weights ──> ready ──> taken

Invariant: an engine that is taken for a round holds the round's policy, by its checksum. Serving one and publishing to
all exclude each other; from the moment at which an engine is ready, it is published to as all others are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import ReplaceEngine
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.runtime.rollout.restarts import Restarts, within_or_failed


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartLimits:
    """How often and for how long it is tried."""

    max_restarts: int
    """Of one slot."""
    first_pause_s: float
    """Before the first restart; it doubles with each one."""
    start_s: float
    """For an engine to start, model and all."""
    serve_s: float
    """For the weights to reach it; who sends them may be busy learning."""
    straggler_s: float
    """For the same once new weights are due, which wait for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ready:
    """An engine that can be taken."""

    engine: Engine
    policy_version: int | None
    """None until the weights are published that are due."""


class Replacements:
    """Keeps the slots of all engines filled.

    Args:
        slots: The engines that the backend brought.
        replace: Starts a fresh engine; None where the backend cannot.
        limits: How often and for how long it is tried.
        note: Tells a person what happens.
        on_ready: Told of an engine that can be taken.
        on_empty: Told of a slot that nobody will take: the engine that was tried last, and why it failed.
        on_error: Told of an error that is no engine's failure.
    """

    def __init__(
        self,
        *,
        slots: Iterable[EngineId],
        replace: ReplaceEngine | None,
        limits: RestartLimits,
        note: Callable[[str], None],
        on_ready: Callable[[EngineId], None],
        on_empty: Callable[[EngineId, RollpackerError], None],
        on_error: Callable[[Exception], None],
    ) -> None:
        self._replace = replace
        self._limits = limits
        self._restarts = Restarts(
            slots=slots,
            bring=None if replace is None else self._bring,
            max_restarts=limits.max_restarts,
            first_pause_s=limits.first_pause_s,
            setting="engine.max_restarts",
            note=note,
            on_ready=on_ready,
            on_empty=on_empty,
            on_error=on_error,
        )
        self._ready: dict[EngineId, _Ready] = {}
        self._sync: WeightSync | None = None
        self._syncing = asyncio.Lock()
        self._serving: asyncio.Task[Published] | None = None
        self._are_weights_due = False

    # Seats

    def slot_of(self, engine: EngineId) -> EngineId:
        """The slot that an engine has, or had."""
        return self._restarts.slot_of(engine)

    def are_expected(self, slots: Collection[EngineId]) -> bool:
        """Whether an engine is to take one of these slots, be it only when its GPUs are the engines' again.

        One that is ready counts: the loss of the engine before it may be told after that.
        """
        is_ready = any(self.slot_of(name) in slots for name in self._ready)
        return is_ready or self._restarts.are_expected(slots)

    @property
    def under_way(self) -> list[EngineId]:
        """The engines that are on their way now, or ready to be taken."""
        return [*self._restarts.under_way, *self._ready]

    @property
    def ready(self) -> list[EngineId]:
        """The engines that can be taken."""
        return list(self._ready)

    def vacate(self, engine: EngineId) -> str:
        """Have the slot of an engine filled that was lost, and say what follows."""
        return self._restarts.vacate(engine)

    async def fill_only(self, slots: Iterable[EngineId]) -> None:
        """Fill these slots from now on and no others, whose GPUs are someone else's: what was under way there ends."""
        await self._restarts.fill_only(slots)

    async def stop(self) -> None:
        """End what is under way."""
        await self._restarts.stop()

    # Engines that are ready

    def take(self, engine: EngineId, policy_version: int) -> Engine | None:
        """Take an engine that is ready; None if it was taken before, or holds what is to be published next."""
        ready = self._ready.get(engine)
        if ready is None or ready.policy_version != policy_version:
            return None
        return self._ready.pop(engine).engine

    @asynccontextmanager
    async def publishing(self, sync: WeightSync) -> AsyncIterator[Mapping[EngineId, Engine]]:
        """Let new weights be published inside, while nobody is served; gives who is ready by then, to be taken."""
        self._are_weights_due = True
        try:
            await self._end_serving()
            async with self._syncing:
                self._sync = sync
                ready, self._ready = self._ready, {}
                self._are_weights_due = False
                yield {name: each.engine for name, each in ready.items()}
        finally:
            self._are_weights_due = False

    async def _end_serving(self) -> None:
        """Wait for who is served now, but not for long."""
        serving = self._serving
        if serving is not None:
            await asyncio.wait([serving], timeout=self._limits.straggler_s)
            serving.cancel()

    # Filling a slot

    async def _bring(self, slot: EngineId, name: EngineId) -> None:
        """Start an engine and give it the policy that was published last."""
        assert self._replace is not None
        engine = await within_or_failed(self._limits.start_s, f"{name} to start", self._replace(slot, name))
        async with self._syncing:
            # weights that are due are published to whoever is ready when this lock is free
            policy_version = None if self._are_weights_due else await self._serve(name, engine)
            self._ready[name] = _Ready(engine=engine, policy_version=policy_version)

    async def _serve(self, name: EngineId, engine: Engine) -> int:
        """Give an engine the policy; gives the version that it holds then."""
        assert self._sync is not None
        self._serving = serving = asyncio.create_task(self._sync.serve(name, engine), name=f"weights of {name}")
        try:
            await asyncio.wait([serving], timeout=self._limits.serve_s)
            if not serving.done() or serving.cancelled():
                raise EngineFailed(f"{name} has not loaded the weights in time.", "Limits are in backend.deadlines.")
            published = serving.result()
            if name in published.lost:
                raise published.lost[name]
            return published.policy_version
        finally:
            self._serving = None
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
