"""The engines in use: which are present, asleep or lost, their tensor-parallel degree, and their replacements.

    present ──lend, leave_gpus──> asleep ──publish──> present
       └──lose──> lost ──a replacement (replacements.py)──> ready ──join──> present

An engine that fails is lost, and one that is to take its place starts in the background when the scheduler says so. It
joins once it holds the policy of the round, so every engine that the scheduler knows holds it. Reward and trainer are
not replaced, and their failure ends the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineProgress,
    EngineRetired,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    Event,
    SlotsChanged,
    SlotsOpened,
    SlotVacated,
)
from rollpacker.core.ids import EngineId
from rollpacker.core.scheduler import Scheduler
from rollpacker.protocols.engine import Engine, EngineStats
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.runtime.rollout.costs import Turnover
from rollpacker.runtime.rollout.engine_sets import EngineSets
from rollpacker.runtime.rollout.failures import Failures
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.inbox import EngineReady, Inbox
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.members import MemberEngines
from rollpacker.runtime.rollout.replacements import Ready, Replacements
from rollpacker.runtime.rollout.starts import what_follows
from rollpacker.runtime.waiting.clock import RunClock


class Engines:
    """Keeps the engines of a run at work.

    Args:
        parts: The engines.
        scheduler: Asked which engines it knows and whether requests wait for one.
        report: Tells the scheduler of an engine, and carries out what follows.
        report_aside: Does so at any time; an error ends the run as soon as the driver looks into the inbox.
        inbox: Gets what engines and replacements have to say.
        members: The engines of rollout workers.
        clock: The run's.
        interval_log: Takes down when engines slept and loaded weights.
        note: Tells a person what happens.
    """

    def __init__(
        self,
        parts: FleetParts,
        *,
        scheduler: Scheduler,
        report: Callable[[Event], None],
        report_aside: Callable[[Event], None],
        inbox: Inbox,
        members: MemberEngines,
        clock: RunClock,
        interval_log: IntervalLog,
        note: Callable[[str], None],
    ) -> None:
        self._sets = EngineSets(parts, self._slot_of, self.lose)
        self.guarded = self._sets.guarded
        self._scheduler = scheduler
        self._report = report
        self._report_aside = report_aside
        self._inbox = inbox
        self._members = members
        self._clock = clock
        self._interval_log = interval_log
        self._note = note
        self._max_restarts = parts.engine.max_restarts
        self._trainer_parts = parts.trainer_parts
        self._replacements = replacements = Replacements(
            parts, on_ready=self._note_ready, on_failed=self._note_failed_start, on_error=inbox.put
        )
        self.start_engine, self.cancel_start = replacements.starts.begin, replacements.starts.cancel
        self.next_tensor_parallel = scheduler.beside.tensor_parallel or self.tensor_parallel
        """The degree after the next `publish`, or `switch`."""
        self.policy_version = 0
        """What the engines in use hold since the last `publish`."""
        self._sync: WeightSync | None = None
        """That published last."""
        self._kv_tokens: dict[EngineId, int] = {}
        """The KV capacity of every engine whose statistics were asked for."""
        self._asleep = [engine_id for engine_id in parts.asleep if engine_id in self._sets.present]
        """Engines whose GPUs are the trainer's, which sleep until new weights come, or were lost."""
        self._asleep_since: dict[EngineId, float] = {}
        self._switch_time_s = 0.0
        """Of the change before the round that comes, or that is to be measured; 0 without one."""
        self._lost: dict[EngineId, RollpackerError] = {}
        """In the order in which they were lost."""
        self._failures = Failures()
        self._noticed: dict[EngineId, EngineFailed] = {}
        """Those that were seen to fail, lost or about to be."""
        self._reported_slots: SlotsChanged | None = None
        self._num_lost = self._num_replaced = 0
        """Since the last count."""
        self._has_started = False

    @property
    def tensor_parallel(self) -> int:
        """The degree in use."""
        return self._sets.tensor_parallel

    @property
    def present(self) -> Mapping[EngineId, Engine]:
        """Of the fleet in use, those that are alive."""
        return self._sets.present

    def find(self, engine_id: EngineId) -> Engine:
        """One that is alive, of the fleet in use or of a worker."""
        return self._members.find(engine_id) or self.present[engine_id]

    @property
    def num_lent(self) -> int:
        """How many slots have GPUs that are the trainer's now."""
        return len(set(map(self._slot_of, self._asleep)))

    async def start(self) -> Mapping[EngineId, EngineStats]:
        """Report the engines, which hold the first policy, and listen to them; gives their statistics."""
        self._has_started = True
        for engine_id, engine in self._sets.all.items():
            self._inbox.listen(engine_id, engine, self._notice)
        self._report(SlotsOpened(slots=self._sets.slots, are_replaceable=self._replacements.can_replace))
        for engine_id, error in self._noticed.items():
            self._vacate(engine_id, error)
        stats = await self.stats()
        for engine_id in self.present:
            self._report_joined(engine_id)
        for engine_id in self._scheduler.engines:  # a restored scheduler may know engines of an earlier attempt
            if engine_id not in self.present:
                self._report(EngineLost(engine=engine_id))
        await self._use_slots()
        return stats

    async def stop(self) -> None:
        """Start no further engine."""
        await self._replacements.starts.stop()

    async def end(self, slots: Collection[EngineId]) -> None:
        """End engines whatever they do."""
        await self._sets.end(slots)

    def _slot_of(self, engine_id: EngineId) -> EngineId:
        restarts = self._scheduler.restarts
        return restarts.slot_of(engine_id) if restarts.knows(engine_id) else engine_id

    async def _use_slots(self, withheld: Collection[EngineId] = ()) -> None:
        """Let engines start in the slots in use, without those whose GPUs are the trainer's: what starts there ends."""
        in_use = self._sets.slots_in_use
        event = SlotsChanged(in_use=in_use, withheld=tuple(slot for slot in in_use if slot in withheld))
        if self._has_started and event != self._reported_slots:
            self._reported_slots = event
            self._report(event)
            await self._replacements.starts.settle()

    def _report_joined(self, engine_id: EngineId) -> None:
        self._report(
            EngineJoined(
                engine=engine_id,
                policy_version=self.policy_version,
                gpus=self._sets.gpus_of(engine_id),
                kv_tokens=self._kv_tokens.get(engine_id, 0),
            )
        )

    # Engines that are lost, and those that take their places

    def _notice(self, engine_id: EngineId, error: EngineFailed) -> None:
        """Have an engine replaced at once; the fact that it is lost keeps its place in the inbox."""
        if engine_id not in self._noticed:
            self._noticed[engine_id] = error
            self._num_lost += 1
            self._failures.add(engine_id, error, self.policy_version)
            if self._has_started and self._failures.repeated is None:
                self._vacate(engine_id, error)

    def _vacate(self, engine_id: EngineId, error: EngineFailed) -> None:
        self._report_aside(SlotVacated(engine=engine_id))
        self._note(f"{error.problem} Its requests go to the other engines. {self._what_follows(engine_id)}")

    def _what_follows(self, engine_id: EngineId) -> str:
        most = self._max_restarts if self._replacements.can_replace else None
        return what_follows(self._scheduler.restarts, engine_id, setting="engine.max_restarts", max_restarts=most)

    def _note_ready(self, engine_id: EngineId) -> None:
        self._report_aside(EngineStarted(engine=engine_id))
        self._inbox.put(EngineReady(engine_id))

    def _note_failed_start(self, engine_id: EngineId, error: RollpackerError) -> None:
        self._lost[engine_id] = error
        self._report_aside(EngineStartFailed(engine=engine_id))
        self._note(f"{error.problem} {self._what_follows(engine_id)}")

    def lose(self, engine_id: EngineId, error: EngineFailed) -> None:
        """Take an engine out of use."""
        if self._members.lose(engine_id, error):
            return
        if engine_id in self._lost:
            return  # its pump and a call to it may both notice
        self._lost[engine_id] = error
        self._inbox.ignore(engine_id)
        self._notice(engine_id, error)
        if self._failures.repeated is not None:
            raise self._failures.repeated
        is_in_use = engine_id in self.present
        self._sets.pop(engine_id)
        if not is_in_use:
            return  # it belongs to a fleet that sleeps, which the scheduler does not know
        if self._has_started:
            self._report(EngineLost(engine=engine_id))
        elif not self.present:
            raise self.none_left()

    def join(self, engine_id: EngineId) -> None:
        """Report an engine that takes a lost one's place; unless it has joined with new weights, or will.

        While its set is about to leave, it leaves with it, and nobody gets to know it.
        """
        ready = self._replacements.take(engine_id, self.policy_version)
        if ready is not None:
            self._admit(engine_id, ready)
            if self.next_tensor_parallel == self.tensor_parallel:
                self._report_joined(engine_id)

    def _admit(self, engine_id: EngineId, ready: Ready) -> None:
        self._num_replaced += 1
        self._note(f"{engine_id} has taken the place of {self._slot_of(engine_id)}.")
        self._sets.present[engine_id] = ready.engine
        self._kv_tokens[engine_id] = ready.kv_tokens
        self._inbox.listen(engine_id, ready.engine, self._notice)

    def none_left(self) -> EngineFailed:
        """Say that no engine is left, and how the last one failed."""
        errors = self._lost or self._noticed  # facts that all are lost may still be in the inbox
        engine_id, error = next(reversed(errors.items()))
        return EngineFailed(
            f"{error.problem} No engine is left that could go on.",
            error.allowed,
            f"Read why in {engine_id}.log under run.dir; run.resume=auto continues from the checkpoint.",
        )

    def turnover(self) -> Turnover:
        """Count the engines that were lost and replaced since the last call."""
        turnover = Turnover(num_lost=self._num_lost, num_replaced=self._num_replaced, switch_time_s=self._switch_time_s)
        self._num_lost = self._num_replaced = 0
        return turnover

    # GPUs that are the trainer's

    async def lend(self, engine_ids: Iterable[EngineId]) -> frozenset[int]:
        """Put engines to sleep until `publish`, on which nothing is in flight.

        Gives the GPUs on which the trainer can work: none of a part of it that has lost one of its engines.
        """
        to_lend = list(engine_ids)
        await self._sets.each("to sleep", to_lend, lambda engine: engine.sleep())
        self._asleep += (asleep := [engine_id for engine_id in to_lend if engine_id in self.present])
        await self._sets.leave(self._sets.on(self._lent_gpus, self._sets.standing))
        self._asleep_since |= dict.fromkeys(asleep, self._clock.now())
        await self._withhold_lent()
        lent, parts = self._lent_gpus, self._trainer_parts
        return frozenset(gpu for part in parts if lent.issuperset(part) for gpu in part) if parts else lent

    async def _withhold_lent(self) -> None:
        """Start no engine on lent GPUs, and end what is left there of lost ones."""
        await self._use_slots(withheld=self._sets.on(self._lent_gpus, self._sets.slots_in_use))
        await self._sets.end_lost(self._sets.on(self._lent_gpus, self._sets.slots))

    @property
    def _lent_gpus(self) -> frozenset[int]:
        return frozenset(gpu for engine_id in self._asleep for gpu in self._sets.gpus_of(engine_id))

    async def take_back(self, engine_ids: Iterable[EngineId]) -> tuple[EngineId, ...]:
        """Wake lent engines, and give them the policy that they had; gives those that have it."""
        to_wake = [engine_id for engine_id in engine_ids if engine_id in self._asleep]  # or it was lost in its sleep
        self._asleep = [engine_id for engine_id in self._asleep if engine_id not in to_wake]
        for engine_id in to_wake:
            self._interval_log.add(engine_id, "engine", "asleep", self._asleep_since.pop(engine_id))
        await self._sets.each("to wake", to_wake, lambda engine: engine.wake())
        awake = [engine_id for engine_id in to_wake if engine_id in self.present]
        await self._serve(awake)
        await self._withhold_lent()
        return tuple(engine_id for engine_id in awake if engine_id in self.present)

    async def leave_gpus(self, slots: Collection[EngineId]) -> None:
        """Put engines to sleep until `publish` wakes them: the trainer works on their GPUs. Nothing is in flight."""
        for engine_id in self._replacements.ready:
            self.join(engine_id)
        await self._use_slots(withheld=slots)
        to_sleep = [
            engine_id
            for engine_id in self.present
            if self._slot_of(engine_id) in slots and engine_id not in self._asleep
        ]
        await self._sets.each("to sleep", to_sleep, lambda engine: engine.sleep())
        await self._sets.leave(engine_id for engine_id in self._sets.standing if self._slot_of(engine_id) in slots)
        await self._sets.end_lost(slots)
        self._asleep += to_sleep
        self._asleep_since |= dict.fromkeys(to_sleep, self._clock.now())

    # New weights, and engines of another degree

    async def publish(self, sync: WeightSync) -> Published:
        """Wake the engines of the next round and give each the new policy; those that do not get it are lost.

        Raises:
            WeightSyncFailed: None of them holds exactly the trainer's weights.
        """
        self._sync = sync
        async with self._replacements.publishing(sync) as newcomers:
            for engine_id, ready in newcomers.items():
                self._admit(engine_id, ready)
            asleep, self._asleep = self._asleep, []
            for engine_id, since in self._asleep_since.items():
                self._interval_log.add(engine_id, "engine", "asleep", since)
            self._asleep_since.clear()
            if self.next_tensor_parallel != self.tensor_parallel:
                return await self._change_fleet(sync, asleep)
            await self._use_slots()
            await self._sets.each("to wake", asleep, lambda engine: engine.wake())
            await self._sets.stand_by()
            published = await self._load(sync)
            for engine_id in self.present:
                if engine_id in newcomers or (self._has_started and engine_id not in self._scheduler.engines):
                    self._report_joined(engine_id)
                elif self._has_started:  # else `start` reports them
                    self._report(EngineUpdated(engine=engine_id, policy_version=published.policy_version))
            return published

    async def _change_fleet(self, sync: WeightSync, asleep: Sequence[EngineId]) -> Published:
        """Put the engines in use to sleep, or end them, and let those of the next degree take their place."""
        began_at_s = self._clock.now()
        retired = await self._leave_for_others(asleep)
        await self._use_slots()
        if not self._has_started and not self.present:
            raise self.none_left()
        await self._sets.take_over()
        if self._has_started:
            self._switch_time_s = self._clock.now() - began_at_s
            self._interval_log.add("driver", "driver", "switch", began_at_s)
        await self._sets.stand_by()
        published = await self._load(sync)
        if self._has_started:  # else `start` reports them
            await self._report_change(list(self.present), retired)
        return published

    async def switch(self) -> Mapping[EngineId, EngineStats]:
        """Change the engines in the midst of a round, whose policy the next ones get; nothing is in flight.

        On lent GPUs they sleep until `publish`. Gives the statistics of the next ones, before they have done anything.
        """
        assert self._sync is not None
        began_at_s = self._clock.now()
        async with self._replacements.publishing(self._sync) as newcomers:
            for engine_id, ready in newcomers.items():
                self._admit(engine_id, ready)
            lent_gpus = self._lent_gpus
            retired = await self._leave_for_others(self._asleep)
            self._asleep = self._sets.on(lent_gpus, dict.fromkeys((*self.present, *self._sets.slots_in_use)))
            await self._withhold_lent()
            able = await self._sets.take_over(self._asleep)
            woken = [engine_id for engine_id in self.present if engine_id not in (*self._asleep, *able)]
            await self._serve(woken)
            self._interval_log.add("driver", "driver", "switch", began_at_s)
            joining = [engine_id for engine_id in self.present if engine_id not in self._asleep]
            return await self._report_change(joining, retired)

    async def _leave_for_others(self, asleep: Collection[EngineId]) -> list[EngineId]:
        """Put the engines in use to sleep, and use the next degree; gives those that the scheduler knows."""
        await self._sets.leave_for_others(asleep)
        while started := self._replacements.withdraw():  # meanwhile: they leave too, and get weights as they return
            for engine_id, ready in started.items():
                self._report(EngineStarted(engine=engine_id))
                self._admit(engine_id, ready)
            await self._sets.leave_for_others([each for each in self.present if each not in started])
        self._sets.tensor_parallel, before = self.next_tensor_parallel, self.present
        return [engine_id for engine_id in before if engine_id in self._scheduler.engines]

    async def _report_change(
        self, joining: Iterable[EngineId], retired: Iterable[EngineId]
    ) -> Mapping[EngineId, EngineStats]:
        stats = await self.stats()  # which loses those that do not answer
        for engine_id in joining:
            if engine_id in self.present:
                self._report_joined(engine_id)
        for engine_id in retired:
            self._report(EngineRetired(engine=engine_id))
        return stats

    @property
    def longest_switch_s(self) -> float:
        """How long the change of the degree may take that `publish` makes; 0 without one, or if no process starts."""
        return self._sets.longest_switch_s(self.next_tensor_parallel)

    def take_switch_time_s(self) -> float:
        """Give the time of the change before the last round, once."""
        switch_time_s, self._switch_time_s = self._switch_time_s, 0.0
        return switch_time_s

    async def _load(self, sync: WeightSync) -> Published:
        began = self._clock.now()
        published = await sync.publish({**self.present, **self._sets.standing})
        self.policy_version = published.policy_version
        for engine_id, error in published.lost.items():
            self.lose(engine_id, error)
        for engine_id in self.present:
            self._interval_log.add(engine_id, "engine", "load_weights", began)
        return published

    async def _serve(self, engine_ids: Iterable[EngineId]) -> None:
        """Give engines the policy that was published last."""
        assert self._sync is not None
        present = [(engine_id, self.present[engine_id]) for engine_id in engine_ids if engine_id in self.present]
        for published in await asyncio.gather(*(self._sync.serve(*each) for each in present)):
            for engine_id, error in published.lost.items():
                self.lose(engine_id, error)

    async def progress(self) -> Collection[EngineProgress]:
        """How far everything in flight is, on every engine that answers, also of workers that serve."""
        theirs = [asyncio.ensure_future(self._members.progress())] if self._members.present else []
        own = await self._sets.ask("to say how far it is", lambda engine: engine.progress())
        members = [each for answer in theirs for each in await answer]
        return [each for each in (*own.values(), *members) if each.engine in self._scheduler.engines]

    async def stats(self) -> Mapping[EngineId, EngineStats]:
        """The statistics of every engine that answers."""
        stats = await self._sets.ask("to give its statistics", lambda engine: engine.stats())
        self._kv_tokens |= {engine_id: each.kv_tokens_capacity for engine_id, each in stats.items()}
        return stats

    def describe_wait(self) -> list[str]:
        """Say which engines are to come."""
        return [f"{engine_id} to start and to load the weights" for engine_id in self._scheduler.restarts.under_way]
