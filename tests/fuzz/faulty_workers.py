"""Workers that fail: wrappers around the engines, the reward and the trainer of any backend.

Invariant: around a worker without a fault a wrapper changes nothing but the order of callbacks of one moment; and what
a crashed worker had not delivered is never delivered.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rollpacker.core.errors import EngineFailed, StorageFailed
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.rollout import FinishReason
from tests.fuzz.faults import Fault, FaultKind

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from rollpacker.core.commands import DraftRule
    from rollpacker.core.events import EngineProgress
    from rollpacker.core.ids import EngineId, RequestId
    from rollpacker.protocols.engine import Engine, EngineStats
    from rollpacker.protocols.reward import ResponseToScore, RewardService
    from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup, Verdict
    from rollpacker.protocols.trainer import BatchShape, Trainer, UpdateMetrics
    from rollpacker.protocols.weights import Weights
    from tests.fuzz.injector import FaultInjector

TORN_CHECKSUM = "torn"
"""What an engine answers whose weights arrived damaged."""


class WorkerObserver:
    """Sees what passes between the driver and the workers; does nothing with it."""

    def engine_was_told(self, engine: EngineId, order: str, requests: Sequence[RequestId]) -> None: ...

    def engine_generates(self, engine: EngineId, request: GenerationRequest) -> None: ...

    def engine_holds(self, engine: EngineId, policy_version: int | None) -> None:
        """None: nothing that may be used."""

    def engine_delivered(self, response: Response) -> None: ...

    def engine_crashed(self, engine: EngineId) -> None: ...

    def reward_was_told(self, requests: Sequence[RequestId]) -> None: ...

    def reward_delivered(self, verdict: Verdict) -> None: ...

    def step_began(self, shape: BatchShape) -> None: ...

    def groups_were_trained(self, groups: Sequence[RolloutGroup]) -> None: ...

    def step_ends(self, num_responses: int | None) -> None: ...


class FaultyEngine:
    """An engine that crashes, hangs, slows down, and loses, delays and repeats messages."""

    def __init__(
        self, name: EngineId, slot: EngineId, engine: Engine, injector: FaultInjector, observer: WorkerObserver
    ) -> None:
        self.name = name
        self.slot = slot
        """The name of the first engine in its place."""
        self._engine = engine
        self._injector = injector
        self._observer = observer
        self._arrivals: Arrivals[Response] = Arrivals()
        self._num_begun: dict[RequestId, float] = {}
        """Tokens that each had when it was launched here last."""
        self._slowness = 0.0
        self.is_crashed = False
        """It counts as lost, or will as soon as somebody notices."""
        self._is_gone = False
        self._is_deaf = False
        self._is_hung = False
        self._is_torn = False

    @property
    def is_lost(self) -> bool:
        """Crashed, or such that it counts as lost when weights are due: hung, or with others than were sent."""
        return self.is_crashed or self._is_hung or self._is_torn

    # What goes wrong

    def suffer(self, fault: Fault) -> None:
        """Let a fault happen that is of this engine alone."""
        match fault.kind:
            case FaultKind.ENGINE_CRASH:
                self.crash()
            case FaultKind.DEAF_ENGINE:
                self.is_crashed = self._is_deaf = True
                self._observer.engine_crashed(self.name)
            case FaultKind.HUNG_ENGINE:
                self._is_hung = True
            case FaultKind.SLOW_ENGINE:
                self._slowness = fault.amount
            case _:
                raise AssertionError(f"{fault.kind} happens to a call")

    def crash(self) -> None:
        """End, with everything that was not collected yet."""
        if not self._is_gone:
            self.is_crashed = self._is_gone = True
            self._observer.engine_crashed(self.name)
            self._arrivals.close()

    async def pump(self) -> None:
        """Pass on what the engine generates, when it is to come; one that is closed gives nothing."""
        while responses := await self._engine.collect():
            at_once: list[Response] = []
            for response in responses:
                delay_s = self._slowness * response.generation_time_s
                if late := self._injector.take(FaultKind.LATE_FINISH, self):
                    delay_s += late.amount
                is_finished = response.finish_reason is not FinishReason.ABORTED
                if is_finished and (again := self._injector.take(FaultKind.DUPLICATE_FINISH, self)):
                    self._repeat_later(delay_s + again.amount, response)
                if delay_s > 0:
                    self._deliver_later(delay_s, response)
                else:
                    at_once.append(response)
            self._deliver(at_once)

    def _deliver_later(self, delay_s: float, response: Response) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._deliver, [response])

    def _repeat_later(self, delay_s: float, response: Response) -> None:
        """Deliver it again, unless its trajectory has begun again here by then: nothing would tell the two apart."""

        def repeat() -> None:
            if self._num_begun.get(response.request, math.inf) >= response.num_tokens:
                self._deliver([response])

        self._num_begun.pop(response.request, None)
        asyncio.get_running_loop().call_later(delay_s, repeat)

    def _deliver(self, responses: Sequence[Response]) -> None:
        if not (self._is_gone or self._is_hung):
            self._arrivals.put(responses)

    # The protocol

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        await self._answer()
        self._observer.engine_was_told(self.name, "generate", [request.request for request in requests])
        for request in requests:
            self._observer.engine_generates(self.name, request)
            self._num_begun[request.request] = request.begun.num_tokens if request.begun else 0
        await self._engine.generate(requests)

    async def abort(self, requests: Sequence[RequestId]) -> None:
        await self._answer()
        self._observer.engine_was_told(self.name, "abort", requests)
        if self._injector.take(FaultKind.LOST_ABORT, self) is None:
            await self._engine.abort(requests)

    async def collect(self) -> Sequence[Response]:
        responses = await self._arrivals.collect()
        if self._is_gone or not self._is_deaf:
            await self._answer()
        for response in responses:
            self._observer.engine_delivered(response)
        return responses

    async def progress(self) -> EngineProgress:
        await self._answer()
        return await self._engine.progress()

    async def use_draft_lengths(self, rules: Sequence[DraftRule]) -> None:
        await self._answer()
        await self._engine.use_draft_lengths(rules)

    async def load_weights(self, weights: Weights) -> str:
        await self._answer()
        checksum = await self._engine.load_weights(weights)
        await self._answer()
        if self._injector.take(FaultKind.TORN_WEIGHTS, self):
            self._observer.engine_holds(self.name, None)
            self._is_torn = True
            return TORN_CHECKSUM
        self._observer.engine_holds(self.name, weights.policy_version)
        return checksum

    async def sleep(self) -> None:
        await self._answer()
        await self._engine.sleep()
        self._observer.engine_holds(self.name, None)

    async def stand_by(self) -> None:
        await self._answer()
        await self._engine.stand_by()

    async def wake(self) -> None:
        await self._answer()
        await self._engine.wake()

    async def stats(self) -> EngineStats:
        await self._answer()
        return await self._engine.stats()

    async def close(self) -> None:
        self._arrivals.close()
        await self._engine.close()

    async def _answer(self) -> None:
        """Fail as a crashed engine does, or wait for ever as a hung one."""
        if self._is_hung and not self.is_crashed:
            await asyncio.Event().wait()
        if self.is_crashed:
            raise EngineFailed(f"{self.name} crashed.", "", "")


class FaultyReward:
    """A reward whose verdicts come late, twice or never."""

    def __init__(self, reward: RewardService, injector: FaultInjector, observer: WorkerObserver) -> None:
        self._reward = reward
        self._injector = injector
        self._observer = observer
        self._arrivals: Arrivals[Verdict] = Arrivals()

    async def pump(self) -> None:
        """Pass on what is judged, when it is to come."""
        loop = asyncio.get_running_loop()
        while True:
            verdicts = await self._reward.collect()
            at_once: list[Verdict] = []
            for verdict in verdicts:
                late = self._injector.take(FaultKind.HUNG_REWARD)
                delay_s = late.amount if late else 0.0
                if again := self._injector.take(FaultKind.DUPLICATE_VERDICT):
                    loop.call_later(delay_s + again.amount, self._arrivals.put, [verdict])
                if late:
                    loop.call_later(delay_s, self._arrivals.put, [verdict])
                else:
                    at_once.append(verdict)
            self._arrivals.put(at_once)

    async def score(self, responses: Sequence[ResponseToScore]) -> None:
        self._observer.reward_was_told([response.request for response in responses])
        await self._reward.score(responses)

    async def forget(self) -> None:
        await self._reward.forget()

    async def collect(self) -> Sequence[Verdict]:
        verdicts = await self._arrivals.collect()
        for verdict in verdicts:
            self._observer.reward_delivered(verdict)
        return verdicts

    async def close(self) -> None:
        self._arrivals.close()
        await self._reward.close()


class FaultyTrainer:
    """A trainer that crashes, hangs, and finds the disk full."""

    def __init__(self, trainer: Trainer, injector: FaultInjector, observer: WorkerObserver) -> None:
        self._trainer = trainer
        self._injector = injector
        self._observer = observer
        self.is_crashed = False

    def crash(self) -> None:
        self.is_crashed = True

    async def begin_step(self, shape: BatchShape) -> None:
        await self._answer()
        self._observer.step_began(shape)
        await self._trainer.begin_step(shape)

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        await self._answer()
        self._observer.groups_were_trained(groups)
        await self._trainer.accumulate(groups, gpus)

    async def give_up_step(self) -> None:
        await self._trainer.give_up_step()

    async def complete_batch(self, num_responses: int | None = None) -> None:
        await self._answer()
        self._observer.step_ends(num_responses)
        await self._trainer.complete_batch(num_responses)

    async def finish_step(self) -> UpdateMetrics:
        await self._answer()
        return await self._trainer.finish_step()

    async def export_weights(self) -> Weights:
        await self._answer()
        return await self._trainer.export_weights()

    async def sleep(self) -> None:
        await self._answer()
        await self._trainer.sleep()

    async def wake(self, gpus: Collection[int] | None = None) -> None:
        await self._answer()
        await self._trainer.wake(gpus)

    async def save(self, folder: Path) -> None:
        await self._answer()
        if self._injector.take(FaultKind.FULL_DISK):
            raise StorageFailed(f"{folder.name} could not be written: the disk is full (ENOSPC)", "", "")
        await self._trainer.save(folder)

    async def load(self, folder: Path) -> None:
        await self._answer()
        await self._trainer.load(folder)

    async def close(self) -> None:
        await self._trainer.close()

    async def _answer(self) -> None:
        if self.is_crashed:
            raise EngineFailed("trainer crashed.", "", "")
        if self._injector.take(FaultKind.HUNG_TRAINER):
            await asyncio.Event().wait()
