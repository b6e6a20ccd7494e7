"""The workers that are measured: started as a run starts them, with one engine fleet in use at a time.

Where engines and trainer share GPUs they take turns, as in a run (`runtime.run.handover`): engines are awake from
`publish` until `trainers_turn`, the trainer from there until `publish`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from rollpacker.transfer.snapshots import SnapshotSync

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import Workers
    from rollpacker.protocols.engine import Engine, EngineStats
    from rollpacker.runtime.waiting.watchdog import Watchdog

Answer = TypeVar("Answer")


class Subject:
    """Calls workers within a deadline, sends weights, and passes shared GPUs on."""

    def __init__(self, config: RunConfig, workers: Workers, watchdog: Watchdog) -> None:
        self.config = config
        self.workers = workers
        self.degrees = tuple(workers.fleets)
        self.degree = self.degrees[0]
        self.policy_version = 0
        self._fleets = {degree: fleet.engines for degree, fleet in workers.fleets.items()}
        self.engines = self._fleets[self.degree]
        self._watchdog = watchdog
        self._sync = workers.weight_sync or SnapshotSync(workers.trainer, config.weight_sync.timeout_s)
        self._is_shared = bool(workers.colocated_engines)
        self._is_trainers_turn = True

    async def within(self, answer: Awaitable[Answer]) -> Answer:
        """Await an answer within the deadline of a rollout that makes no progress."""
        deadline_s = self.config.backend.deadlines.rollout_stall_s
        return await self._watchdog.within(deadline_s, "an answer of what is measured", answer)

    async def stats(self) -> EngineStats:
        """Ask an engine of those in use, which are all alike."""
        return await self.within(next(iter(self.engines.values())).stats())

    async def switch_to(self, degree: int) -> None:
        """Use the engines of another degree; those in use so far sleep or end."""
        if degree == self.degree:
            return
        rebuild = self.workers.rebuild
        ends = [rebuild.end(name) if rebuild else engine.sleep() for name, engine in self.engines.items()]
        await self.within(asyncio.gather(*ends))
        self.degree, self.engines = degree, self._fleets[degree]
        begins = [rebuild.rebuild(name) if rebuild else engine.wake() for name, engine in self.engines.items()]
        await self.within(asyncio.gather(*begins))
        await self.publish()

    async def publish(self) -> float:
        """Send the trainer's policy to every engine in use, as a run does.

        Returns the seconds that it took; on shared GPUs with the trainer's sleep, without the engines' wake.
        """
        await self.trainers_turn()
        began, wake_s = now_s(), 0.0
        if self._is_shared:
            await self.within(self._sync.prepare())
            await self.within(self.workers.trainer.sleep())
            if self.workers.judges is not None:
                await self.within(self.workers.judges.wake())
            asleep_until = now_s()
            await self.within(asyncio.gather(*(engine.wake() for engine in self._sharing())))
            wake_s = now_s() - asleep_until
        self._is_trainers_turn = False
        published = await self.within(self._sync.publish(self.engines))
        for failure in published.lost.values():
            raise failure
        self.policy_version = published.policy_version
        return now_s() - began - wake_s

    async def trainers_turn(self) -> None:
        """Give shared GPUs to the trainer, if they are the engines'; `publish` gives them back."""
        if self._is_trainers_turn:
            return
        self._is_trainers_turn = True
        if self._is_shared:
            await self.within(asyncio.gather(*(engine.sleep() for engine in self._sharing())))
            if self.workers.judges is not None:
                await self.within(self.workers.judges.sleep())
            await self.within(self.workers.trainer.wake())

    def _sharing(self) -> list[Engine]:
        """The engines in use that share GPUs with the trainer."""
        return [engine for name, engine in self.engines.items() if name in self.workers.colocated_engines]


def now_s() -> float:
    """The time of the event loop's clock, which is virtual where workers are modelled."""
    return asyncio.get_running_loop().time()
