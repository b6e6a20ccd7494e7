"""The driver: feeds facts to the scheduler and carries its commands out, and decides nothing.

    engines ── collect ──┐                                   ┌── generate, abort ──> engines
    rewards ── collect ──┴─> inbox ─> Scheduler.handle ─> outbox ── score ─────────> rewards
    order   <─ DrawPrompts ──────────────┘        ├─> AcceptGroup, EndRound: the batch
    trainer <─ StreamGroups, LendEngines ─────────┘

One pump per engine and one for the reward bring facts into the inbox; one loop takes them out, in order of arrival.
Commands that one batch of facts led to are sent together, one call per engine, in the order in which they were given.
The reward has a client of its own (`reward_client.py`): no fact waits for it. The driver knows engines and
rewards by protocol only, so it cannot tell real ones from modelled ones.

An engine that fails is lost, and one that is to take its place is brought in the background (`replacements.py`). It
joins once it holds the policy of the round, so every engine that the scheduler knows holds it. As long as one is to
come, a round without engines waits for it; reward and trainer are not replaced, and their failure ends the run.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, assert_never

from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.config.sections.reward import RewardSection
from rollpacker.config.sections.rollout import RolloutSection
from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DrawPrompts,
    DropPrompt,
    EndRound,
    EndRun,
    Evict,
    FailRun,
    Launch,
    LendEngines,
    MeasureProgress,
    ScoreResponse,
    StreamGroups,
    UseParallelism,
)
from rollpacker.core.errors import DataError, EngineFailed, RollpackerError
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    EngineProgress,
    EngineRetired,
    Event,
    ProgressMeasured,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    StepStarted,
)
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.core.scheduler import Scheduler
from rollpacker.data.order import PromptOrder
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.backend import Fleet, Rebuild, ReplaceEngine
from rollpacker.protocols.engine import Engine, EngineStats
from rollpacker.protocols.reward import ResponseToScore, RewardService
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt, Verdict
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.rewards.overlong import OverlongPunishment
from rollpacker.runtime.rollout.failures import Failures
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.replacements import Replacements, RestartLimits
from rollpacker.runtime.rollout.restarts import within_or_failed
from rollpacker.runtime.rollout.reward_client import RewardClient
from rollpacker.runtime.rollout.round_record import RoundRecord
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.shared_timeout import SharedTimeout
from rollpacker.runtime.waiting.watchdog import Watchdog

OnEvent = Callable[[Event, float, tuple[Command, ...]], None]
"""Told of every event with its time and the commands that followed: the event log."""

OnProgress = Callable[[int, int], None]
"""Told of groups accepted and groups needed."""

OnStream = Callable[[RoundRecord, frozenset[int] | None], None]
"""Told of the round whose accepted groups the trainer may train from now on, and on which of the GPUs that it shares
with engines; None where it shares none."""

_EngineCommand = Launch | Abort | Evict


class _Responses(NamedTuple):
    engine: EngineId
    responses: Sequence[Response]


class _Verdicts(NamedTuple):
    verdicts: Sequence[Verdict]


class _EngineDied(NamedTuple):
    engine: EngineId
    error: EngineFailed


class _EngineReady(NamedTuple):
    engine: EngineId


class _SlotEmpty(NamedTuple):
    engine: EngineId
    """That was tried last."""
    error: RollpackerError


_Fact = _Responses | _Verdicts | _EngineDied | _EngineReady | _SlotEmpty | Exception
"""What comes into the inbox; an exception is raised again by the loop."""


def _too_few_differ(command: FailRun) -> DataError:
    return DataError(
        f"Step {command.round} launched {command.num_prompts_launched} prompts, and {command.num_prompts_dropped} of "
        f"them had all their rewards equal; {command.num_prompts_needed} places of the batch are open.",
        "With system.dynamic_sampling a batch holds only prompts whose rewards differ, and a step launches at most "
        "system.max_launch_factor times the prompts that it needs.",
        "Take prompts that the model solves sometimes, or raise rollout.num_responses or system.max_launch_factor; "
        "`solve_rate` in the table `domains` says how hard they are.",
    )


def sample_seed(run_seed: int, step: int, prompt: PromptId, sample: int) -> int:
    """The seed of one sample: a function of its names, so that no other sample can change it. 63 bits."""
    name = f"{run_seed}/{step}/{prompt.epoch}/{prompt.key}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Turnover:
    """Which engines went and came."""

    num_lost: int
    num_replaced: int
    """Joined in the place of lost ones."""
    switch_time_s: float
    """In which engines of another degree took the place of those before, without the weights' way to them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What the engines did in a round."""

    tensor_parallel: int
    parallelism_gain: float | None
    """Tokens per second over those of its kind's rounds on the degree of before, if anyone remembers."""
    num_engines_lent: int
    """To the trainer, before the round was over."""
    before: Mapping[EngineId, EngineStats]
    after: Mapping[EngineId, EngineStats]

    def growth(self, counter: str) -> int:
        """How much a counter grew, over the engines that are still alive."""
        before = {engine: getattr(stats, counter) for engine, stats in self.before.items()}
        return sum(getattr(stats, counter) - before.get(engine, 0) for engine, stats in self.after.items())

    def mean_per_pass(self, counter: str) -> float:
        """How much a counter grew in a forward pass of an engine, on average; 0 without any pass."""
        num_passes = self.growth("num_decode_steps")
        return self.growth(counter) / num_passes if num_passes else 0.0

    @property
    def kv_cache_share(self) -> float:
        """Mean share of an engine's KV cache that was in use during forward passes."""
        capacity = sum(stats.kv_tokens_capacity for stats in self.after.values()) / max(1, len(self.after))
        return self.mean_per_pass("kv_token_steps") / capacity if capacity else 0.0


class Driver:
    """Runs rollout rounds over any engines and any reward."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        order: PromptOrder,
        prompts: Mapping[str, TokenizedPrompt],
        fleets: Mapping[int, Fleet],
        replace_engine: ReplaceEngine | None,
        rebuild: Rebuild | None = None,
        reward: RewardService,
        rewards: RewardSection,
        rollout: RolloutSection,
        overlong: OverlongPunishment,
        engine: EngineSection,
        deadlines: DeadlineSection,
        straggler_s: float,
        seed: int,
        clock: RunClock,
        watchdog: Watchdog,
        on_event: OnEvent,
        on_progress: OnProgress,
        on_stream: OnStream,
        interval_log: IntervalLog,
        asleep: Iterable[EngineId] = (),
        note: Callable[[str], None],
    ) -> None:
        self._scheduler = scheduler
        self._order = order
        self._prompts = prompts
        self._fleets = fleets
        self._rebuild = rebuild
        self._tensor_parallel = next(iter(fleets))
        self._present = {degree: dict(fleet.engines) for degree, fleet in fleets.items()}
        """Of every fleet, the engines that are alive."""
        self._rollout = rollout
        self._overlong = overlong
        self._deadlines = deadlines
        self._seed = seed
        self._clock = clock
        self._watchdog = watchdog
        self._on_event = on_event
        self._on_progress = on_progress
        self._on_stream = on_stream
        self._interval_log = interval_log
        self._note = note

        self._inbox: Arrivals[_Fact] = Arrivals()
        self._timeout = SharedTimeout(watchdog, deadlines.rollout_stall_s)
        self._reward = RewardClient(
            reward,
            check_of=rewards.name_of,
            watchdog=watchdog,
            stall_s=deadlines.rollout_stall_s,
            on_verdicts=lambda verdicts: self._inbox.put([_Verdicts(verdicts)]),
            on_error=lambda error: self._inbox.put([error]),
        )
        self._replacements = Replacements(
            slots=[engine_id for fleet in fleets.values() for engine_id in fleet.engines],
            replace=replace_engine,
            limits=RestartLimits(
                max_restarts=engine.max_restarts,
                first_pause_s=engine.restart_pause_s,
                start_s=deadlines.start_s,
                serve_s=deadlines.train_s + deadlines.weight_sync_s,
                straggler_s=straggler_s,
            ),
            note=note,
            on_ready=lambda engine_id: self._inbox.put([_EngineReady(engine_id)]),
            on_empty=lambda engine_id, error: self._inbox.put([_SlotEmpty(engine_id, error)]),
            on_error=lambda error: self._inbox.put([error]),
        )
        self._has_started = False
        self._pumps: list[asyncio.Task[None]] = []
        self._to_engines: dict[EngineId, list[_EngineCommand]] = {}
        self._to_score: list[ScoreResponse] = []
        self._to_measure: MeasureProgress | None = None
        self._in_flight: dict[RequestId, EngineId] = {}
        self._being_evicted: set[RequestId] = set()
        self._to_lend: tuple[EngineId, ...] = ()
        """Lent engines that are not asleep yet."""
        self._asleep = list(asleep)
        """Engines whose GPUs are the trainer's, which sleep until new weights come."""
        self._asleep_since: dict[EngineId, float] = {}
        self._next_tensor_parallel = scheduler.tensor_parallel or self._tensor_parallel
        self._switch_time_s = 0.0
        """Of the change before the round that comes, or that is to be measured; 0 without one."""
        self._lost: dict[EngineId, RollpackerError] = {}
        """In the order in which they were lost."""
        self._failures = Failures()
        self._noticed: set[EngineId] = set()
        """Those that somebody saw fail, lost or about to be."""
        self._num_lost = self._num_replaced = 0
        """Since somebody asked last."""
        self._stats: dict[EngineId, EngineStats] = {}
        """As the last round left them."""
        self._round: RoundRecord | None = None
        self._policy_version = self._step = 0
        self._is_run_over = False

    @property
    def engines(self) -> Mapping[EngineId, Engine]:
        """Of the fleet in use, those that are alive."""
        return self._present[self._tensor_parallel]

    async def start(self) -> None:
        """Report the engines to the scheduler, and listen to them. They hold the first policy."""
        self._has_started = True
        for engines in self._present.values():
            for engine_id, engine in engines.items():
                self._listen(self._pump_engine(engine_id, engine), f"responses of {engine_id}")
        self._reward.start()
        for engine_id in self.engines:
            self._report_joined(engine_id)
        for engine_id in self._scheduler.engines:  # a restored scheduler may know engines of an earlier attempt
            if engine_id not in self.engines:
                self._take(EngineLost(engine=engine_id))
        await self._replacements.fill_only(self._slots())
        self._stats = await self._ask_stats()

    def _slots(self) -> Collection[EngineId]:
        """Of the fleet in use."""
        return self._fleets[self._tensor_parallel].engines.keys()

    def _gpus_of(self, engine_id: EngineId) -> tuple[int, ...]:
        return self._fleets[self._tensor_parallel].gpus.get(self._replacements.slot_of(engine_id), ())

    def _report_joined(self, engine_id: EngineId) -> None:
        self._take(EngineJoined(engine=engine_id, gpus=self._gpus_of(engine_id)))

    async def stop(self) -> None:
        await self._replacements.stop()
        await self._reward.stop()
        self._timeout.close()
        for pump in self._pumps:
            pump.cancel()
        for pump in self._pumps:
            with suppress(asyncio.CancelledError):
                await pump

    def interrupt(self, error: Exception) -> None:
        """End the round that runs with an error of someone else's: its batch could not be trained."""
        self._inbox.put([error])

    async def end_engines(self, slots: Collection[EngineId]) -> None:
        """End engines whatever they do: the run leaves, and its trainer needs their GPUs for a last checkpoint."""
        await self.stop()
        ending = [
            engine.close()
            for engine_id, engine in self.engines.items()
            if self._replacements.slot_of(engine_id) in slots
        ]
        await self._watchdog.within(
            self._deadlines.stop_s, "engines to end", asyncio.gather(*ending, return_exceptions=True)
        )

    async def run_round(self, step: int, policy_version: int) -> RoundRecord | None:
        """Roll out the batch of one step; None when all data has been trained or dropped.

        Raises:
            DataError: Too few prompts have rewards that differ.
        """
        self._step = step
        self._policy_version = policy_version
        self._round = None
        self._take(StepStarted(step=step, policy_version=policy_version))
        await self._send()
        while not (self._is_run_over or self._is_batch_complete()):
            await self._digest()
        return None if self._is_run_over else self._round

    async def quiesce(self) -> None:
        """Wait until every engine has confirmed its aborts: no request is in flight when new weights arrive.

        Nor does the reward go on with responses that the batch was complete without.
        """
        self._to_lend = ()  # what has not fallen asleep by now need not any more
        self._reward.forget()
        while self._in_flight:
            await self._digest()

    async def measure_round(self) -> RoundCosts:
        """Measure what the last round cost, and report it to the scheduler."""
        record = self._round
        assert record is not None
        stats = await self._ask_stats()
        costs = RoundCosts(
            tensor_parallel=self._tensor_parallel,
            parallelism_gain=None,
            num_engines_lent=len(self._asleep),
            before=self._stats,
            after=stats,
        )
        self._stats = stats
        switch_time_s, self._switch_time_s = self._switch_time_s, 0.0
        self._take(
            RoundMeasured(
                round=record.begin.round,
                num_preemptions=costs.growth("num_preemptions"),
                rollout_time_s=(record.generated_at_s or record.ended_at_s) - record.began_at_s,
                num_tokens=record.num_needed_tokens,
                switch_time_s=switch_time_s,
                lengths_tokens=tuple(
                    request.response.num_tokens for request in record.requests.values() if request.response
                ),
            )
        )
        return replace(costs, parallelism_gain=self._scheduler.parallelism_gain)

    async def leave_gpus(self, slots: Collection[EngineId]) -> None:
        """Put engines to sleep until `publish` wakes them: the trainer works on their GPUs. Nothing is in flight."""
        for engine_id in self._replacements.ready:
            self._join(engine_id)
        await self._bring_none_to(slots)
        to_sleep = [
            engine_id
            for engine_id in self.engines
            if self._replacements.slot_of(engine_id) in slots and engine_id not in self._asleep
        ]
        await self._each(to_sleep, lambda engine: engine.sleep())
        self._asleep += to_sleep
        self._asleep_since |= dict.fromkeys(to_sleep, self._clock.now())

    async def _bring_none_to(self, slots: Collection[EngineId]) -> None:
        """Bring no engine to these slots until `publish`: their GPUs are the trainer's."""
        await self._replacements.fill_only(slot for slot in self._slots() if slot not in slots)

    async def publish(self, sync: WeightSync) -> Published:
        """Wake the engines of the next round and give each the new policy; those that do not get it are lost.

        Raises:
            WeightSyncFailed: None of them holds exactly the trainer's weights.
        """
        async with self._replacements.publishing(sync) as newcomers:
            for engine_id, engine in newcomers.items():
                self._admit(engine_id, engine)
            asleep, self._asleep = self._asleep, []
            for engine_id, since in self._asleep_since.items():
                self._interval_log.add(engine_id, "engine", "asleep", since)
            self._asleep_since.clear()
            if self._next_tensor_parallel != self._tensor_parallel:
                return await self._change_fleet(sync, asleep)
            if self._has_started:
                await self._replacements.fill_only(self._slots())
            await self._each(asleep, lambda engine: engine.wake())
            published = await self._load(sync)
            for engine_id in newcomers:
                if engine_id in self.engines:
                    self._report_joined(engine_id)
            return published

    async def _change_fleet(self, sync: WeightSync, asleep: Sequence[EngineId]) -> Published:
        """Put the engines in use to sleep, or end them, and let those of the next degree take their place."""
        began_at_s = self._clock.now()
        if self._rebuild:
            await self._move(self._rebuild.end, 2 * self._deadlines.stop_s)
        else:
            awake = [engine_id for engine_id in self.engines if engine_id not in asleep]
            await self._each(awake, lambda engine: engine.sleep())
        retired = [engine_id for engine_id in self.engines if engine_id in self._scheduler.engines]
        self._tensor_parallel = self._next_tensor_parallel
        if self._has_started:
            await self._replacements.fill_only(self._slots())
        self._require_engine()
        if self._rebuild:
            await self._move(self._rebuild.rebuild, self._deadlines.start_s)
        else:
            await self._each(list(self.engines), lambda engine: engine.wake())
        if self._has_started:
            self._switch_time_s = self._clock.now() - began_at_s
            self._interval_log.add("driver", "driver", "switch", began_at_s)
        published = await self._load(sync)
        if self._has_started:  # else `start` reports them
            for engine_id in self.engines:
                self._report_joined(engine_id)
            for engine_id in retired:
                self._take(EngineRetired(engine=engine_id))
            self._stats = await self._ask_stats()
        return published

    async def _move(self, move: Callable[[EngineId], Awaitable[None]], deadline_s: float) -> None:
        """End or start every engine of the degree in use; one for which that fails is lost."""

        def moving(engine_id: EngineId) -> Callable[[], Awaitable[None]]:
            slot = self._replacements.slot_of(engine_id)
            return lambda: within_or_failed(deadline_s, f"{engine_id} to make place, or to take it", move(slot))

        await asyncio.gather(*(self._guarded(engine_id, moving(engine_id)) for engine_id in list(self.engines)))

    @property
    def longest_switch_s(self) -> float:
        """How long the change of the degree may take that `publish` makes; 0 without one, or if nobody starts anew."""
        is_rebuilding = self._rebuild is not None and self._next_tensor_parallel != self._tensor_parallel
        return 2 * self._deadlines.stop_s + self._deadlines.start_s if is_rebuilding else 0.0

    async def _load(self, sync: WeightSync) -> Published:
        began = self._clock.now()
        published = await sync.publish(dict(self.engines))
        for engine_id, error in published.lost.items():
            self._lose(engine_id, error)
        for engine_id in self.engines:
            self._interval_log.add(engine_id, "engine", "load_weights", began)
        return published

    def turnover(self) -> Turnover:
        """Count the engines that were lost and replaced since the last call."""
        turnover = Turnover(num_lost=self._num_lost, num_replaced=self._num_replaced, switch_time_s=self._switch_time_s)
        self._num_lost = self._num_replaced = 0
        return turnover

    async def _ask_stats(self) -> dict[EngineId, EngineStats]:
        """The statistics of every engine in use."""
        asked = {engine_id: engine.stats() for engine_id, engine in self.engines.items()}
        answers = await self._watchdog.within(
            self._deadlines.rollout_stall_s,
            "the engines' statistics",
            asyncio.gather(*asked.values(), return_exceptions=True),
        )
        stats: dict[EngineId, EngineStats] = {}
        for engine_id, answer in zip(asked, answers, strict=True):
            if isinstance(answer, EngineFailed):
                self._lose(engine_id, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                stats[engine_id] = answer
        return stats

    def _is_batch_complete(self) -> bool:
        return self._round is not None and self._round.order is not None

    # Facts in ------------------------------------------------------------------------------------------------------

    def _listen(self, pump: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.create_task(pump, name=f"pump: {what}")
        self._pumps.append(task)

    async def _pump_engine(self, engine_id: EngineId, engine: Engine) -> None:
        try:
            while True:
                self._inbox.put([_Responses(engine_id, await engine.collect())])
        except EngineFailed as error:
            self._notice(engine_id, error)
            self._inbox.put([_EngineDied(engine_id, error)])
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `_digest`)
            self._inbox.put([error])

    async def _digest(self) -> None:
        """Wait for facts, report them to the scheduler, and send what it orders."""
        facts = await self._timeout.within(self._describe_wait, self._inbox.collect())
        for fact in facts:
            self._report(fact)
        await self._send()

    def _report(self, fact: _Fact) -> None:
        now = self._clock.now()
        match fact:
            case _Responses(engine_id, responses):
                for response in responses:
                    self._report_response(engine_id, response, now)
            case _Verdicts(verdicts):
                for verdict in verdicts:
                    self._report_verdict(verdict, now)
            case _EngineDied(engine_id, failure):
                self._lose(engine_id, failure)
            case _EngineReady(engine_id):
                self._join(engine_id)
            case _SlotEmpty(engine_id, error):
                self._lost[engine_id] = error
                self._require_engine()
            case _:
                raise fact

    def _report_response(self, engine_id: EngineId, response: Response, now: float) -> None:
        request = response.request
        is_evicted = False
        if self._in_flight.get(request) == engine_id:  # else it was lost with its engine and runs elsewhere by now
            del self._in_flight[request]
            is_evicted = request in self._being_evicted
            self._being_evicted.discard(request)
            assert self._round is not None
            self._round.came_back(response, now)
        if response.finish_reason is FinishReason.ABORTED and is_evicted:
            self._take(ResponseEvicted(request=request, engine=engine_id, num_tokens=response.num_tokens))
            return
        if response.finish_reason is FinishReason.ABORTED:
            self._take(ResponseAborted(request=request, engine=engine_id, num_tokens=response.num_tokens))
            return
        version = min(span.policy_version for span in response.spans)
        self._take(
            ResponseFinished(request=request, engine=engine_id, num_tokens=response.num_tokens, policy_version=version)
        )

    def _report_verdict(self, verdict: Verdict, now: float) -> None:
        if self._round is not None and verdict.request in self._round.requests:
            self._round.scored(verdict, now)
        self._take(RewardComputed(request=verdict.request, reward=verdict.reward, case_runs=verdict.case_runs))

    def _notice(self, engine_id: EngineId, error: EngineFailed) -> None:
        """Have an engine replaced at once; the fact that it is lost keeps its place in the line, which may be long."""
        if engine_id not in self._noticed:
            self._noticed.add(engine_id)
            self._num_lost += 1
            self._failures.add(engine_id, error, self._policy_version)
            if self._failures.repeated is not None:
                return
            self._note(f"{error.problem} Its requests go to the other engines. {self._replacements.vacate(engine_id)}")

    def _lose(self, engine_id: EngineId, error: EngineFailed) -> None:
        if engine_id in self._lost:
            return  # its pump and a call to it may both notice
        self._lost[engine_id] = error
        self._notice(engine_id, error)
        if self._failures.repeated is not None:
            raise self._failures.repeated
        is_in_use = engine_id in self.engines
        for engines in self._present.values():
            engines.pop(engine_id, None)
        if not is_in_use:
            return  # it belongs to a fleet that sleeps, of which the scheduler does not know
        if engine_id not in self._scheduler.engines:  # it died before it had joined
            self._require_engine()
            return
        self._to_engines.pop(engine_id, None)
        lost = {request for request, holder in self._in_flight.items() if holder == engine_id}
        self._in_flight = {request: holder for request, holder in self._in_flight.items() if request not in lost}
        self._being_evicted -= lost
        self._take(EngineLost(engine=engine_id))
        self._require_engine()

    def _join(self, engine_id: EngineId) -> None:
        """Report an engine that takes a lost one's place; unless it has joined with new weights, or will."""
        engine = self._replacements.take(engine_id, self._policy_version)
        if engine is not None:
            self._admit(engine_id, engine)
            self._report_joined(engine_id)

    def _admit(self, engine_id: EngineId, engine: Engine) -> None:
        self._num_replaced += 1
        self._note(f"{engine_id} has taken the place of {self._replacements.slot_of(engine_id)}.")
        self._present[self._tensor_parallel][engine_id] = engine
        self._listen(self._pump_engine(engine_id, engine), f"responses of {engine_id}")

    def _require_engine(self) -> None:
        """Raise the last engine's error when nobody is there, or to come, for the round or for the run."""
        if self._scheduler.is_starved:
            is_hope_left = bool(self._replacements.under_way)
        else:
            is_replaceable = self._has_started and self._replacements.are_expected(self._slots())
            is_hope_left = bool(self.engines) or is_replaceable
        if is_hope_left:
            return
        engine_id, error = next(reversed(self._lost.items()))
        raise EngineFailed(
            f"{error.problem} No engine is left that could go on.",
            error.allowed,
            f"Read why in {engine_id}.log under run.dir; run.resume=auto continues from the checkpoint.",
        )

    # Commands out --------------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        """Report one event, and carry out what it leads to; drawing prompts leads to further events."""
        events = deque([event])
        while events:
            event = events.popleft()
            now = self._clock.now()
            commands = self._scheduler.handle(event, now)
            self._on_event(event, now, commands)
            for command in commands:
                answer = self._carry_out(command, now)
                if answer is not None:
                    events.append(answer)

    def _carry_out(self, command: Command, now: float) -> Event | None:  # noqa: C901, PLR0912 one case per command
        """Carry out one command; gives its answer where that is known at once."""
        match command:
            case DrawPrompts():
                return self._order.draw(command.domain, command.num_prompts)
            case Launch() | Abort() | Evict():
                self._to_engines.setdefault(command.engine, []).append(command)
            case ScoreResponse():
                self._to_score.append(command)
            case MeasureProgress():
                self._to_measure = command
            case BeginRound():
                self._begin(command, now)
            case AcceptGroup():
                self._accept(command)
            case DropPrompt():
                assert self._round is not None
                self._round.drop(command.prompt)
            case EndRound():
                self._end(command, now)
            case LendEngines():
                assert self._round is not None
                self._to_lend = command.engines
                self._round.lend()
            case StreamGroups():
                assert self._round is not None
                self._on_stream(self._round, None)
            case UseParallelism():
                self._next_tensor_parallel = command.tensor_parallel
            case FailRun():
                raise _too_few_differ(command)
            case EndRun():
                self._is_run_over = True
            case _:
                assert_never(command)
        return None

    def _begin(self, command: BeginRound, now: float) -> None:
        self._round = RoundRecord(
            begin=command,
            policy_version=self._policy_version,
            began_at_s=now,
            prompts=self._prompts,
            overlong=self._overlong,
        )

    def _accept(self, command: AcceptGroup) -> None:
        assert self._round is not None
        self._round.accept(command.prompt, command.samples)
        self._on_progress(len(self._round.accepted), self._round.begin.num_prompts_needed)

    def _end(self, command: EndRound, now: float) -> None:
        assert self._round is not None
        self._round.order = command.prompts
        self._round.long_queue_length = command.long_queue_length
        self._round.ended_at_s = now

    async def _send(self) -> None:
        """Send what has gathered, until nothing has; an engine lost on the way leads to further commands."""
        while self._to_engines or self._to_score or self._to_measure:
            to_engines, self._to_engines = self._to_engines, {}
            to_score, self._to_score = self._to_score, []
            to_measure, self._to_measure = self._to_measure, None
            calls: list[Coroutine[Any, Any, None]] = [
                self._send_to_engine(engine_id, commands) for engine_id, commands in to_engines.items()
            ]
            if to_score:
                self._reward.add([self._to_judge(command) for command in to_score])
            if to_measure:
                calls.append(self._measure_progress(to_measure))
            if calls:
                answer: Awaitable[Any] = calls[0] if len(calls) == 1 else asyncio.gather(*calls)
                await self._timeout.within(lambda: "engines to take orders", answer)
        if self._to_lend:
            await self._lend()

    async def _send_to_engine(self, engine_id: EngineId, commands: Sequence[_EngineCommand]) -> None:
        engine = self.engines[engine_id]
        for kind, run in itertools.groupby(commands, key=type):
            requests = [command.request for command in run]
            if kind is Launch:
                to_generate = [self._to_generate(engine_id, request) for request in requests]
                order = partial(engine.generate, to_generate)
            else:
                order = partial(engine.abort, requests)
            if kind is Evict:
                self._being_evicted.update(requests)
            if not await self._guarded(engine_id, order):
                return

    async def _each(self, engine_ids: Iterable[EngineId], order: Callable[[Engine], Awaitable[None]]) -> None:
        """Give the same order to several engines at once."""
        present = [(engine_id, self.engines[engine_id]) for engine_id in engine_ids if engine_id in self.engines]
        await self._watchdog.within(
            self._deadlines.rollout_stall_s,
            "engines to fall asleep or to wake",
            asyncio.gather(*(self._guarded(engine_id, partial(order, engine)) for engine_id, engine in present)),
        )

    async def _guarded(self, engine_id: EngineId, order: Callable[[], Awaitable[None]]) -> bool:
        """Give an order to an engine; False when it turns out to be lost."""
        try:
            await order()
        except EngineFailed as error:
            self._lose(engine_id, error)
            return False
        return True

    async def _measure_progress(self, command: MeasureProgress) -> None:
        engine_ids = list(self.engines)
        answers = await asyncio.gather(
            *(self.engines[engine_id].progress() for engine_id in engine_ids), return_exceptions=True
        )
        engines: list[EngineProgress] = []
        for engine_id, answer in zip(engine_ids, answers, strict=True):
            if isinstance(answer, EngineFailed):
                self._lose(engine_id, answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                engines.append(answer)
        self._take(ProgressMeasured(round=command.round, engines=tuple(engines)))

    async def _lend(self) -> None:
        """Put engines that are to be lent to sleep once all of them are empty."""
        if self._being_evicted:  # most often; else some that were aborted before may still be on their way back
            return
        if set(self._to_lend) & set(self._in_flight.values()):
            return
        to_lend, self._to_lend = self._to_lend, ()
        record = self._round
        assert record is not None
        await self._each(to_lend, lambda engine: engine.sleep())
        self._asleep = [engine_id for engine_id in to_lend if engine_id in self.engines]
        self._asleep_since |= dict.fromkeys(self._asleep, self._clock.now())
        await self._bring_none_to([self._replacements.slot_of(engine_id) for engine_id in self._asleep])
        self._on_stream(record, frozenset(gpu for engine_id in self._asleep for gpu in self._gpus_of(engine_id)))

    def _to_generate(self, engine_id: EngineId, request: RequestId) -> GenerationRequest:
        assert self._round is not None
        self._in_flight[request] = engine_id
        begun = self._round.launched(request, engine_id, self._clock.now())
        return GenerationRequest(
            request=request,
            prompt_token_ids=self._prompts[request.prompt.key].token_ids,
            seed=sample_seed(self._seed, self._step, request.prompt, request.sample),
            max_response_tokens=self._rollout.max_response_tokens,
            temperature=self._rollout.temperature,
            begun=begun,
        )

    def _to_judge(self, command: ScoreResponse) -> ResponseToScore:
        assert self._round is not None
        response = self._round.requests[command.request].response
        assert response is not None
        return ResponseToScore(
            request=command.request,
            prompt=self._prompts[command.request.prompt.key].prompt,
            token_ids=response.token_ids,
            is_truncated=response.finish_reason is FinishReason.LENGTH,
            case_limits_s=command.case_limits_s,
        )

    def _describe_wait(self) -> str:
        per_engine: dict[EngineId, int] = {}
        for engine_id in self._in_flight.values():
            per_engine[engine_id] = per_engine.get(engine_id, 0) + 1
        responses = [f"{count} responses of {engine_id}" for engine_id, count in sorted(per_engine.items())]
        newcomers = [f"{engine_id} to start and to load the weights" for engine_id in self._replacements.under_way]
        return (
            " and ".join(responses + self._reward.describe_wait() + newcomers)
            or "the next fact of any engine or reward"
        )
