"""The workers that are measured: started as a run starts them, with one engine fleet in use at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from rollpacker.core.errors import EngineFailed

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.protocols.backend import Workers
    from rollpacker.runtime.waiting.watchdog import Watchdog

Answer = TypeVar("Answer")


class Subject:
    """Calls workers within a deadline, and keeps their weights at one policy version."""

    def __init__(self, config: RunConfig, workers: Workers, watchdog: Watchdog) -> None:
        self.config = config
        self.workers = workers
        self.degrees = tuple(workers.fleets)
        self.degree = self.degrees[0]
        self.policy_version = 0
        self._fleets = {degree: fleet.engines for degree, fleet in workers.fleets.items()}
        self.engines = self._fleets[self.degree]
        self._watchdog = watchdog

    async def within(self, answer: Awaitable[Answer]) -> Answer:
        """Await an answer within the deadline of a rollout that makes no progress."""
        deadline_s = self.config.backend.deadlines.rollout_stall_s
        return await self._watchdog.within(deadline_s, "an answer of what is measured", answer)

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

    async def publish(self) -> int:
        """Send the trainer's policy to every engine in use; returns its bytes."""
        weights = await self.within(self.workers.trainer.export_weights())
        answers = await self.within(asyncio.gather(*(engine.load_weights(weights) for engine in self.engines.values())))
        if any(answer != weights.checksum for answer in answers):
            raise EngineFailed("An engine holds other weights than the trainer sent.")
        self.policy_version = weights.policy_version
        return weights.num_bytes


def now_s() -> float:
    """The time of the event loop's clock, which is virtual where workers are modelled."""
    return asyncio.get_running_loop().time()
