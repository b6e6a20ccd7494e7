"""Which policy the engines hold, and time-sharing of GPUs between engines, LLM judges and the trainer.

    rollout     engines and judges are awake, the trainer sleeps
    training    the trainer is awake, engines and judges sleep

Invariant: of those that share GPUs only one side is in their memory. Where nothing is shared, nothing ever sleeps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.sections.backend import DeadlineSection
    from rollpacker.protocols.backend import Workers
    from rollpacker.protocols.weights import Published, WeightSync
    from rollpacker.runtime.rollout.driver import Driver
    from rollpacker.runtime.rollout.interval_log import IntervalLog
    from rollpacker.runtime.rollout.learning import Learner
    from rollpacker.runtime.waiting.clock import RunClock
    from rollpacker.runtime.waiting.watchdog import Watchdog


class Handover:
    """Publishes the trainer's policy to engines that share no GPU with it."""

    is_colocated = False
    """Engines and trainer share GPUs."""

    def __init__(self, driver: Driver, weight_sync: WeightSync, watchdog: Watchdog, deadlines: DeadlineSection) -> None:
        self._driver = driver
        self._weight_sync = weight_sync
        self._watchdog = watchdog
        self._deadlines = deadlines

    async def to_trainer(self) -> None:
        """Give shared GPUs to the trainer: engines sleep until new weights come. No request is in flight."""

    async def for_checkpoint(self, *, is_last: bool) -> bool:
        """Wake a trainer that sleeps: what it holds in host memory cannot be saved. False if it was awake.

        Engines on its GPUs end when `is_last`, and sleep otherwise.
        """
        del is_last
        return False

    async def publish(self) -> Published:
        """Send the trainer's policy to every engine; shared GPUs are the engines' from then on."""
        return await self._watchdog.within(
            self._deadlines.weight_sync_s + self._driver.longest_switch_s,
            "the engines to load the trainer's weights",
            self._driver.publish(self._weight_sync),
        )


class SharedGpuHandover(Handover):
    """Also passes shared GPUs from engines and judges to the trainer and back."""

    is_colocated = True

    def __init__(
        self,
        driver: Driver,
        weight_sync: WeightSync,
        watchdog: Watchdog,
        deadlines: DeadlineSection,
        *,
        workers: Workers,
        learner: Learner,
        clock: RunClock,
        interval_log: IntervalLog,
    ) -> None:
        super().__init__(driver, weight_sync, watchdog, deadlines)
        self._engines = workers.colocated_engines
        self._trainer = workers.trainer
        self._judges = workers.judges
        self._learner = learner
        self._clock = clock
        self._interval_log = interval_log
        self._judges_asleep_since = clock.now()
        self._is_trainer_asleep = False

    async def to_trainer(self) -> None:
        await self._driver.leave_gpus(self._engines)
        await self._learner.end_streaming()
        await self._wake_trainer()

    async def for_checkpoint(self, *, is_last: bool) -> bool:
        if not self._is_trainer_asleep:
            return False
        await (self._driver.end_engines if is_last else self._driver.leave_gpus)(self._engines)
        await self._wake_trainer()
        return True

    async def publish(self) -> Published:
        within, deadlines = self._watchdog.within, self._deadlines
        await within(deadlines.weight_sync_s, "the trainer's weights", self._weight_sync.prepare())
        self._is_trainer_asleep = True
        await within(deadlines.train_s, "the trainer to leave its GPUs", self._trainer.sleep())
        if self._judges is not None:
            for judge in self._judges.colocated:
                self._interval_log.add(judge, "judge", "asleep", self._judges_asleep_since)
            await within(deadlines.train_s, "judges to wake", self._judges.wake())
            self._driver.resume_reward()
        return await super().publish()

    async def _wake_trainer(self) -> None:
        if self._judges is not None:
            self._driver.pause_reward()
            await self._watchdog.within(self._deadlines.train_s, "judges to sleep", self._judges.sleep())
            self._judges_asleep_since = self._clock.now()
        await self._watchdog.within(self._deadlines.train_s, "the trainer to take its GPUs", self._trainer.wake())
        self._is_trainer_asleep = False
