"""A backend whose workers are wrapped in faults, around any other backend."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tests.fuzz.faulty_workers import FaultyEngine, FaultyReward, FaultyTrainer

if TYPE_CHECKING:
    from rollpacker.core.ids import EngineId
    from rollpacker.protocols.backend import Backend, BackendContext, Fleet, Workers
    from rollpacker.protocols.engine import Engine
    from tests.fuzz.faulty_workers import WorkerObserver
    from tests.fuzz.injector import FaultInjector


class FaultyBackend:
    """Wraps every worker that a backend brings."""

    def __init__(
        self, backend: Backend, injector: FaultInjector, observer: WorkerObserver, *, escalates: bool = False
    ) -> None:
        self._escalates = escalates
        self._backend = backend
        self._injector = injector
        self._observer = observer
        self.is_modelled = backend.is_modelled

    @asynccontextmanager
    async def open(self, surroundings: BackendContext) -> AsyncIterator[Workers]:
        async with self._backend.open(surroundings) as workers:
            pumps: dict[str, asyncio.Task[None]] = {}

            def pump(work: Coroutine[Any, Any, None], what: str) -> None:
                pumps[what] = asyncio.create_task(work, name=f"faulty {what}")

            wrapped = {
                degree: {
                    name: FaultyEngine(name, name, engine, self._injector, self._observer)
                    for name, engine in fleet.engines.items()
                }
                for degree, fleet in workers.fleets.items()
            }
            seated = {name: engine for engines in wrapped.values() for name, engine in engines.items()}

            async def replace_engine(slot: EngineId, name: EngineId) -> Engine:
                assert workers.replace_engine is not None
                old = seated[slot]
                pumps[old.name].cancel()
                self._injector.restart(slot, old, name)
                engine = await workers.replace_engine(slot, name)
                seated[slot] = FaultyEngine(name, slot, engine, self._injector, self._observer)
                self._injector.put_in_place(old, seated[slot])
                pump(seated[slot].pump(), name)
                return seated[slot]

            reward = FaultyReward(workers.reward, self._injector, self._observer)
            trainer = FaultyTrainer(workers.trainer, self._injector, self._observer)
            self._injector.watch([list(engines.values()) for engines in wrapped.values()], trainer)
            for engines in wrapped.values():
                for engine in engines.values():
                    pump(engine.pump(), engine.name)
            pump(reward.pump(), "reward")
            try:
                fleets = {degree: replace(fleet, engines=wrapped[degree]) for degree, fleet in workers.fleets.items()}
                if self._escalates:
                    fleets = {degree: _with_costs(fleet, degree == max(fleets)) for degree, fleet in fleets.items()}
                yield replace(workers, fleets=fleets, reward=reward, trainer=trainer, replace_engine=replace_engine)
            finally:
                self._injector.stop_clock()
                for task in pumps.values():
                    task.cancel()
                await asyncio.gather(*pumps.values(), return_exceptions=True)


def _with_costs(fleet: Fleet, is_largest: bool) -> Fleet:
    """Claim that large engines decode small batches at no cost, and large ones so slowly that no round begins there."""
    assert fleet.costs is not None
    seconds = (0.001, 0.001, 10_000.0) if is_largest else (10.0, 10.0, 10.0)
    return replace(fleet, costs=replace(fleet.costs, batch_sizes=(1.0, 3.0, 4.0), pass_s=seconds, prefill_s=0.0))
