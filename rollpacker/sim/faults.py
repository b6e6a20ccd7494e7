"""Faults in virtual time: what goes wrong, when and to whom, and wrappers that make it so around any workers.

A fault waits for its moment (so many events told to the scheduler, or a time of the run), and happens once in the life
of a run, however many attempts that has. Some happen at that moment: an engine crashes, the clock jumps. Others are
armed then, and happen to the next call that they fit: the next abort of an engine is lost, a verdict comes twice.

Invariant: around a worker without a fault a wrapper changes nothing but the order of callbacks of one moment; and what
a crashed worker had not delivered is never delivered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import EngineFailed, StorageFailed
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.sim.virtual_time import VirtualTimeLoop

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from rollpacker.core.events import EngineProgress
    from rollpacker.core.ids import EngineId, RequestId
    from rollpacker.protocols.backend import Backend, Surroundings, Workers
    from rollpacker.protocols.engine import Engine, EngineStats
    from rollpacker.protocols.reward import ResponseToScore, RewardService
    from rollpacker.protocols.rollout import GenerationRequest, Response, RolloutGroup, Verdict
    from rollpacker.protocols.trainer import BatchShape, Trainer, UpdateMetrics
    from rollpacker.protocols.weights import Weights

TORN_CHECKSUM = "torn"
"""What an engine answers whose weights arrived damaged."""


class FaultKind(StrEnum):
    """What goes wrong."""

    ENGINE_CRASH = "engine_crash"
    SLOW_ENGINE = "slow_engine"
    """Until the end of the attempt, answers come later by `amount` times the time that they took."""
    HUNG_ENGINE = "hung_engine"
    """It takes no further order and gives no further answer."""
    DEAF_ENGINE = "deaf_engine"
    """Orders to it fail, so that it counts as lost; what it runs comes all the same."""
    LOST_ABORT = "lost_abort"
    """An engine ignores an order to abort: the responses come whole, later."""
    LATE_FINISH = "late_finish"
    """One response comes `amount` seconds late."""
    DUPLICATE_FINISH = "duplicate_finish"
    """One response comes again, `amount` seconds later."""
    HUNG_REWARD = "hung_reward"
    """One verdict comes `amount` seconds late, perhaps beyond every limit."""
    DUPLICATE_VERDICT = "duplicate_verdict"
    """One verdict comes again, `amount` seconds later."""
    TORN_WEIGHTS = "torn_weights"
    """An engine holds other weights than were sent, and would generate with them."""
    FAILED_START = "failed_start"
    """An engine that is to take a lost one's place does not start."""
    HUNG_TRAINER = "hung_trainer"
    """A call of the trainer never returns."""
    LOST_TRAINER = "lost_trainer"
    FULL_DISK = "full_disk"
    """A checkpoint cannot be written."""
    NODE_LOSS = "node_loss"
    """`amount` engines crash at once, counted from the target; the trainer too if the first engine is among them."""
    CLOCK_JUMP = "clock_jump"
    """The driver's machine is suspended for `amount` seconds: all that was due comes at once."""
    DRIVER_KILL = "driver_kill"
    """As by kill -9: nothing is closed, flushed or told."""
    PREEMPTION_NOTICE = "preemption_notice"
    """The run is asked to leave its machines, which are gone `amount` seconds later; it goes on later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong, once."""

    kind: FaultKind
    at_event: int | None = None
    """After so many events, counted over all attempts, 0 before the first weights; None goes by `at_s`."""
    at_s: float = 0.0
    """Seconds since the run began."""
    target: int = 0
    """Number of the engine, or of the one that took its place, modulo how many there are."""
    amount: float = 0.0


class Witness:
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


class FaultInjector:
    """Lets each fault of a plan happen once, over all attempts of a run."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._waiting = list(faults)
        self._armed: list[Fault] = []
        self._num_events = 0
        self.happened: list[Fault] = []
        """In order, over all attempts."""
        self._fleets: list[list[FaultyEngine]] = []
        self._engines: list[FaultyEngine] = []
        """Of each seat the last one."""
        self._num_restarts: Counter[EngineId] = Counter()
        """Tried in this attempt, by seat."""
        self._has_begun = False
        """The run's clock runs."""
        self._trainer: FaultyTrainer | None = None
        self._kill: Callable[[], None] = lambda: None
        self._give_notice: Callable[[float], None] = lambda _: None
        self._timers: list[asyncio.TimerHandle] = []

    def begin_attempt(self, kill: Callable[[], None], give_notice: Callable[[float], None]) -> None:
        """Forget the workers of the last attempt.

        Args:
            kill: How the driver dies.
            give_notice: How it is asked to leave within so many seconds.
        """
        self._engines, self._trainer, self._timers = [], None, []
        self._num_restarts.clear()
        self._has_begun = False
        self._kill, self._give_notice = kill, give_notice

    def watch(self, fleets: Sequence[Sequence[FaultyEngine]], trainer: FaultyTrainer) -> None:
        """Name the workers that faults may hit."""
        self._fleets = [list(fleet) for fleet in fleets]
        self._engines = [engine for fleet in fleets for engine in fleet]
        self._trainer = trainer
        self._let_due_faults_happen()

    def restart(self, seat: EngineId, old: FaultyEngine, name: EngineId) -> None:
        """An engine is to take another one's place.

        Raises:
            EngineFailed: That fault was armed.
        """
        self._num_restarts[seat] += 1
        old.crash()
        if self.take(FaultKind.FAILED_START):
            raise EngineFailed(f"{name} did not start.", "", "")

    def put_in_place(self, old: FaultyEngine, engine: FaultyEngine) -> None:
        """Let faults hit the engine that took another one's place."""
        for engines in (self._engines, *self._fleets):
            if old in engines:
                engines[engines.index(old)] = engine

    def is_short_of_workers(self, *, can_lend: bool, max_restarts: int) -> bool:
        """Whether no attempt could go on: the trainer crashed, or all engines that may be in use did, once too often.

        Args:
            can_lend: The trainer may have the GPUs of half of the engines, which then are no help to the others.
            max_restarts: Of each engine. What happens before the first step is no reason to restart one.
        """
        is_trainer_lost = self._trainer is not None and self._trainer.is_crashed
        given_up = [
            [
                engine.is_lost and (not self._has_begun or self._num_restarts[engine.seat] >= max_restarts)
                for engine in fleet
            ]
            for fleet in self._fleets
        ]
        return is_trainer_lost or any(map(any if can_lend else all, given_up))

    def start_clock(self) -> None:
        """Set a timer for every fault that waits for its time; the run's clock has just started."""
        self._has_begun = True
        loop = asyncio.get_running_loop()
        timed = [fault for fault in self._waiting if fault.at_event is None]
        self._timers = [loop.call_at(max(fault.at_s, loop.time()), self._come, fault) for fault in timed]

    def stop_clock(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def count_event(self) -> None:
        """Let happen what waits for this many events."""
        self._num_events += 1
        self._let_due_faults_happen()

    def _let_due_faults_happen(self) -> None:
        for fault in list(self._waiting):
            if fault.at_event is not None and fault.at_event <= self._num_events:
                self._come(fault)

    def take(self, kind: FaultKind, engine: FaultyEngine | None = None) -> Fault | None:
        """Give an armed fault that fits a call, which happens by this."""
        for fault in self._armed:
            if fault.kind is kind and (engine is None or self._target(fault) is engine):
                self._armed.remove(fault)
                self.happened.append(fault)
                return fault
        return None

    def _target(self, fault: Fault) -> FaultyEngine | None:
        return self._engines[fault.target % len(self._engines)] if self._engines else None

    def _come(self, fault: Fault) -> None:
        if fault not in self._waiting:
            return
        self._waiting.remove(fault)
        if fault.kind in _ARMED or not self._engines or self._trainer is None:
            self._armed.append(fault)
            return
        self.happened.append(fault)
        match fault.kind:
            case FaultKind.LOST_TRAINER:
                self._trainer.crash()
            case FaultKind.NODE_LOSS:
                self._lose_node(fault.target % len(self._engines), max(1, int(fault.amount)), self._trainer)
            case FaultKind.CLOCK_JUMP:
                loop = asyncio.get_running_loop()
                assert isinstance(loop, VirtualTimeLoop)
                loop.suspend(fault.amount)
            case FaultKind.DRIVER_KILL:
                self._kill()
            case FaultKind.PREEMPTION_NOTICE:
                self._give_notice(fault.amount)
            case _:
                self._engines[fault.target % len(self._engines)].suffer(fault)

    def _lose_node(self, first: int, num_engines: int, trainer: FaultyTrainer) -> None:
        for engine in self._engines[first : first + num_engines]:
            engine.crash()
        if first == 0:
            trainer.crash()


_ARMED = frozenset(
    {
        FaultKind.LOST_ABORT,
        FaultKind.LATE_FINISH,
        FaultKind.DUPLICATE_FINISH,
        FaultKind.HUNG_REWARD,
        FaultKind.DUPLICATE_VERDICT,
        FaultKind.TORN_WEIGHTS,
        FaultKind.FAILED_START,
        FaultKind.HUNG_TRAINER,
        FaultKind.FULL_DISK,
    }
)
"""Kinds that happen to the next call that they fit."""


class FaultyBackend:
    """Wraps every worker that a backend brings."""

    def __init__(self, backend: Backend, injector: FaultInjector, witness: Witness) -> None:
        self._backend = backend
        self._injector = injector
        self._witness = witness
        self.is_modelled = backend.is_modelled

    @asynccontextmanager
    async def open(self, surroundings: Surroundings) -> AsyncIterator[Workers]:
        async with self._backend.open(surroundings) as workers:
            pumps: dict[str, asyncio.Task[None]] = {}

            def pump(work: Coroutine[Any, Any, None], what: str) -> None:
                pumps[what] = asyncio.create_task(work, name=f"faulty {what}")

            wrapped = {
                degree: {
                    name: FaultyEngine(name, name, engine, self._injector, self._witness)
                    for name, engine in fleet.engines.items()
                }
                for degree, fleet in workers.fleets.items()
            }
            seated = {name: engine for engines in wrapped.values() for name, engine in engines.items()}

            async def replace_engine(seat: EngineId, name: EngineId) -> Engine:
                assert workers.replace_engine is not None
                old = seated[seat]
                pumps[old.name].cancel()
                self._injector.restart(seat, old, name)
                engine = await workers.replace_engine(seat, name)
                seated[seat] = FaultyEngine(name, seat, engine, self._injector, self._witness)
                self._injector.put_in_place(old, seated[seat])
                pump(seated[seat].pump(), name)
                return seated[seat]

            reward = FaultyReward(workers.reward, self._injector, self._witness)
            trainer = FaultyTrainer(workers.trainer, self._injector, self._witness)
            self._injector.watch([list(engines.values()) for engines in wrapped.values()], trainer)
            for engines in wrapped.values():
                for engine in engines.values():
                    pump(engine.pump(), engine.name)
            pump(reward.pump(), "reward")
            try:
                fleets = {degree: replace(fleet, engines=wrapped[degree]) for degree, fleet in workers.fleets.items()}
                yield replace(workers, fleets=fleets, reward=reward, trainer=trainer, replace_engine=replace_engine)
            finally:
                self._injector.stop_clock()
                for task in pumps.values():
                    task.cancel()
                await asyncio.gather(*pumps.values(), return_exceptions=True)


class FaultyEngine:
    """An engine that crashes, hangs, slows down, and loses, delays and repeats messages."""

    def __init__(
        self, name: EngineId, seat: EngineId, engine: Engine, injector: FaultInjector, witness: Witness
    ) -> None:
        self.name = name
        self.seat = seat
        """The name of the first engine in its place."""
        self._engine = engine
        self._injector = injector
        self._witness = witness
        self._arrivals: Arrivals[Response] = Arrivals()
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
                self._witness.engine_crashed(self.name)
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
            self._witness.engine_crashed(self.name)
            self._arrivals.close()

    async def pump(self) -> None:
        """Pass on what the engine generates, when it is to come."""
        while True:
            responses = await self._engine.collect()
            at_once: list[Response] = []
            for response in responses:
                delay_s = self._slowness * response.generation_time_s
                if late := self._injector.take(FaultKind.LATE_FINISH, self):
                    delay_s += late.amount
                if again := self._injector.take(FaultKind.DUPLICATE_FINISH, self):
                    self._deliver_later(delay_s + again.amount, response)
                if delay_s > 0:
                    self._deliver_later(delay_s, response)
                else:
                    at_once.append(response)
            self._deliver(at_once)

    def _deliver_later(self, delay_s: float, response: Response) -> None:
        asyncio.get_running_loop().call_later(delay_s, self._deliver, [response])

    def _deliver(self, responses: Sequence[Response]) -> None:
        if not (self._is_gone or self._is_hung):
            self._arrivals.put(responses)

    # The protocol

    async def generate(self, requests: Sequence[GenerationRequest]) -> None:
        await self._answer()
        self._witness.engine_was_told(self.name, "generate", [request.request for request in requests])
        for request in requests:
            self._witness.engine_generates(self.name, request)
        await self._engine.generate(requests)

    async def abort(self, requests: Sequence[RequestId]) -> None:
        await self._answer()
        self._witness.engine_was_told(self.name, "abort", requests)
        if self._injector.take(FaultKind.LOST_ABORT, self) is None:
            await self._engine.abort(requests)

    async def collect(self) -> Sequence[Response]:
        responses = await self._arrivals.collect()
        if self._is_gone or not self._is_deaf:
            await self._answer()
        for response in responses:
            self._witness.engine_delivered(response)
        return responses

    async def progress(self) -> EngineProgress:
        await self._answer()
        return await self._engine.progress()

    async def load_weights(self, weights: Weights) -> str:
        await self._answer()
        checksum = await self._engine.load_weights(weights)
        await self._answer()
        if self._injector.take(FaultKind.TORN_WEIGHTS, self):
            self._witness.engine_holds(self.name, None)
            self._is_torn = True
            return TORN_CHECKSUM
        self._witness.engine_holds(self.name, weights.policy_version)
        return checksum

    async def sleep(self) -> None:
        await self._answer()
        await self._engine.sleep()
        self._witness.engine_holds(self.name, None)

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

    def __init__(self, reward: RewardService, injector: FaultInjector, witness: Witness) -> None:
        self._reward = reward
        self._injector = injector
        self._witness = witness
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
        self._witness.reward_was_told([response.request for response in responses])
        await self._reward.score(responses)

    async def forget(self) -> None:
        await self._reward.forget()

    async def collect(self) -> Sequence[Verdict]:
        verdicts = await self._arrivals.collect()
        for verdict in verdicts:
            self._witness.reward_delivered(verdict)
        return verdicts

    async def close(self) -> None:
        self._arrivals.close()
        await self._reward.close()


class FaultyTrainer:
    """A trainer that crashes, hangs, and finds the disk full."""

    def __init__(self, trainer: Trainer, injector: FaultInjector, witness: Witness) -> None:
        self._trainer = trainer
        self._injector = injector
        self._witness = witness
        self.is_crashed = False

    def crash(self) -> None:
        self.is_crashed = True

    async def begin_step(self, shape: BatchShape) -> None:
        await self._answer()
        self._witness.step_began(shape)
        await self._trainer.begin_step(shape)

    async def accumulate(self, groups: Sequence[RolloutGroup], gpus: Collection[int] | None = None) -> None:
        await self._answer()
        self._witness.groups_were_trained(groups)
        await self._trainer.accumulate(groups, gpus)

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
