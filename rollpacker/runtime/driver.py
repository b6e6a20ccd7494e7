"""The driver: feeds facts to the scheduler and carries its commands out, and decides nothing.

    engines ── collect ──┐                                   ┌── generate, abort ──> engines
    rewards ── collect ──┴─> inbox ─> Scheduler.handle ─> outbox ── score ─────────> rewards
    order   <─ DrawPrompts ──────────────┘        ├─> AcceptGroup, EndRound: the batch
    trainer <─ LendEngines ───────────────────────┘

One pump per engine and per reward brings facts into the inbox; one loop takes them out, in order of arrival. Commands
that one batch of facts led to are sent together, one call per engine, in the order in which they were given. The
driver knows engines and rewards by protocol only, so it cannot tell real ones from modelled ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, assert_never

from rollpacker.config.schema import DeadlineSection, RolloutSection
from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DrawPrompts,
    EndRound,
    EndRun,
    Evict,
    Launch,
    LendEngines,
    MeasureProgress,
    ScoreResponse,
    UseParallelism,
)
from rollpacker.core.errors import EngineFailed, WeightSyncFailed
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
from rollpacker.protocols.backend import Fleet
from rollpacker.protocols.engine import Engine, EngineStats
from rollpacker.protocols.reward import ResponseToScore, RewardService
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt, Verdict
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.clock import RunClock
from rollpacker.runtime.patience import Patience
from rollpacker.runtime.round_record import RoundRecord
from rollpacker.runtime.watchdog import Watchdog

OnEvent = Callable[[Event, float, tuple[Command, ...]], None]
"""Told of every event with its time and the commands that followed: the event log."""

OnProgress = Callable[[int, int], None]
"""Told of groups accepted and groups needed."""

OnGpusLent = Callable[[RoundRecord, frozenset[int]], None]
"""Told of the GPUs that the trainer may use from now on, and of the round whose groups it may train."""

_EngineCommand = Launch | Abort | Evict


class _Responses(NamedTuple):
    engine: EngineId
    responses: Sequence[Response]


class _Verdicts(NamedTuple):
    verdicts: Sequence[Verdict]


class _EngineDied(NamedTuple):
    engine: EngineId
    error: EngineFailed


_Fact = _Responses | _Verdicts | _EngineDied | Exception
"""What pumps put into the inbox; an exception is raised again by the loop."""


def sample_seed(run_seed: int, step: int, prompt: PromptId, sample: int) -> int:
    """The seed of one sample: a function of its names, so that no other sample can change it. 63 bits."""
    name = f"{run_seed}/{step}/{prompt.epoch}/{prompt.key}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCosts:
    """What the engines did in a round."""

    tensor_parallel: int
    num_engines_lent: int
    """To the trainer, before the round was over."""
    before: Mapping[EngineId, EngineStats]
    after: Mapping[EngineId, EngineStats]

    def growth(self, counter: str) -> int:
        """How much a counter grew, over the engines that are still alive."""
        before = {engine: getattr(stats, counter) for engine, stats in self.before.items()}
        return sum(getattr(stats, counter) - before.get(engine, 0) for engine, stats in self.after.items())


class Driver:
    """Runs rollout rounds over any engines and any reward."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        order: PromptOrder,
        prompts: Mapping[str, TokenizedPrompt],
        fleets: Mapping[int, Fleet],
        reward: RewardService,
        rollout: RolloutSection,
        deadlines: DeadlineSection,
        seed: int,
        clock: RunClock,
        watchdog: Watchdog,
        on_event: OnEvent,
        on_progress: OnProgress,
        on_engine_lost: Callable[[EngineFailed], None],
        on_gpus_lent: OnGpusLent,
    ) -> None:
        self._scheduler = scheduler
        self._order = order
        self._prompts = prompts
        self._fleets = fleets
        self._tensor_parallel = next(iter(fleets))
        self._engines = dict(fleets[self._tensor_parallel].engines)
        self._reward = reward
        self._rollout = rollout
        self._deadlines = deadlines
        self._seed = seed
        self._clock = clock
        self._watchdog = watchdog
        self._on_event = on_event
        self._on_progress = on_progress
        self._on_engine_lost = on_engine_lost
        self._on_gpus_lent = on_gpus_lent

        self._inbox: Arrivals[_Fact] = Arrivals()
        self._patience = Patience(watchdog, deadlines.rollout_stall_s)
        self._pumps: list[asyncio.Task[None]] = []
        self._to_engines: dict[EngineId, list[_EngineCommand]] = {}
        self._to_score: list[ScoreResponse] = []
        self._to_measure: MeasureProgress | None = None
        self._in_flight: dict[RequestId, EngineId] = {}
        self._being_evicted: set[RequestId] = set()
        self._to_lend: tuple[EngineId, ...] = ()
        """Lent engines that are not asleep yet."""
        self._asleep: list[EngineId] = []
        """Lent engines that sleep until new weights come."""
        self._next_tensor_parallel = scheduler.tensor_parallel or self._tensor_parallel
        self._dead: set[EngineId] = set()
        self._stats: dict[EngineId, EngineStats] = {}
        """As the last round left them."""
        self._being_scored: set[RequestId] = set()
        self._round: RoundRecord | None = None
        self._policy_version = 0
        self._step = 0
        self._is_run_over = False

    @property
    def engines(self) -> Mapping[EngineId, Engine]:
        """Of the fleet in use, those that are alive."""
        return self._engines

    async def start(self) -> None:
        """Report the engines to the scheduler, and listen to them. They hold the first policy."""
        for fleet in self._fleets.values():
            for engine_id, engine in fleet.engines.items():
                self._listen(self._pump_engine(engine_id, engine), f"responses of {engine_id}")
        self._listen(self._pump_reward(), "verdicts")
        self._report_joined()
        for engine_id in self._scheduler.engines:  # a restored scheduler may know engines of an earlier attempt
            if engine_id not in self._engines:
                self._take(EngineLost(engine=engine_id))
        self._stats = await self._ask_stats()

    def _report_joined(self) -> None:
        gpus = self._fleets[self._tensor_parallel].gpus
        for engine_id in self._engines:
            self._take(EngineJoined(engine=engine_id, gpus=gpus.get(engine_id, ())))

    async def stop(self) -> None:
        self._patience.close()
        for pump in self._pumps:
            pump.cancel()
        for pump in self._pumps:
            with suppress(asyncio.CancelledError):
                await pump

    async def run_round(self, step: int, policy_version: int) -> RoundRecord | None:
        """Roll out the batch of one step; None when all data has been trained."""
        self._step = step
        self._policy_version = policy_version
        self._round = None
        self._take(StepStarted(step=step, policy_version=policy_version))
        await self._send()
        while not (self._is_run_over or self._is_batch_complete()):
            await self._digest()
        return self._round

    async def quiesce(self) -> None:
        """Wait until every engine has confirmed its aborts: no request is in flight when new weights arrive.

        Nor does the reward go on with responses that the batch was complete without.
        """
        self._to_lend = ()  # what has not fallen asleep by now need not any more
        if self._being_scored:
            await self._watchdog.within(
                self._deadlines.rollout_stall_s, "the reward to take orders", self._reward.forget()
            )
            self._being_scored.clear()
        while self._in_flight:
            await self._digest()

    async def measure_round(self) -> RoundCosts:
        """Measure what the last round cost, and report it to the scheduler."""
        record = self._round
        assert record is not None
        stats = await self._ask_stats()
        costs = RoundCosts(
            tensor_parallel=self._tensor_parallel, num_engines_lent=len(self._asleep), before=self._stats, after=stats
        )
        self._stats = stats
        self._take(
            RoundMeasured(
                round=record.begin.round,
                num_preemptions=costs.growth("num_preemptions"),
                rollout_time_s=record.ended_at_s - record.began_at_s,
                num_tokens=costs.growth("num_generated_tokens"),
            )
        )
        return costs

    async def publish(self, weights: Weights) -> None:
        """Wake the engines of the next round and give each the new policy.

        Raises:
            WeightSyncFailed: One of them does not hold exactly these weights.
        """
        if self._next_tensor_parallel != self._tensor_parallel:
            await self._change_fleet(weights)
            return
        asleep, self._asleep = self._asleep, []
        await self._each(asleep, lambda engine: engine.wake())
        await self._load(weights)

    async def _change_fleet(self, weights: Weights) -> None:
        """Put the engines in use to sleep, and let those of the next degree take their place."""
        await self._each(
            [engine_id for engine_id in self._engines if engine_id not in self._asleep], lambda engine: engine.sleep()
        )
        retired, self._asleep = list(self._engines), []
        self._tensor_parallel = self._next_tensor_parallel
        fleet = self._fleets[self._tensor_parallel].engines
        self._engines = {engine_id: engine for engine_id, engine in fleet.items() if engine_id not in self._dead}
        await self._each(self._engines, lambda engine: engine.wake())
        await self._load(weights)
        if self._pumps:  # else `start` reports them
            self._report_joined()
            for engine_id in retired:
                self._take(EngineRetired(engine=engine_id))
            self._stats = await self._ask_stats()

    async def _load(self, weights: Weights) -> None:
        loads = {engine_id: engine.load_weights(weights) for engine_id, engine in self._engines.items()}
        answers = await asyncio.gather(*loads.values(), return_exceptions=True)
        for engine_id, answer in zip(loads, answers, strict=True):
            if isinstance(answer, EngineFailed):
                self._lose(engine_id, answer)
            elif isinstance(answer, BaseException):
                raise answer
            elif answer != weights.checksum:
                raise WeightSyncFailed(
                    f"{engine_id} holds weights with checksum {answer}; "
                    f"version {weights.policy_version} has {weights.checksum}.",
                    "",
                    "The transfer was torn or stale; resume from the last checkpoint with run.resume=auto.",
                )

    async def _ask_stats(self) -> dict[EngineId, EngineStats]:
        """The statistics of every engine in use."""
        asked = {engine_id: engine.stats() for engine_id, engine in self._engines.items()}
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
            self._inbox.put([_EngineDied(engine_id, error)])
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `_digest`)
            self._inbox.put([error])

    async def _pump_reward(self) -> None:
        try:
            while True:
                self._inbox.put([_Verdicts(await self._reward.collect())])
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `_digest`)
            self._inbox.put([error])

    async def _digest(self) -> None:
        """Wait for facts, report them to the scheduler, and send what it orders."""
        facts = await self._patience.within(self._describe_wait, self._inbox.collect())
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
            case _EngineDied(engine_id, error):
                self._lose(engine_id, error)
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
        self._being_scored.discard(verdict.request)
        if self._round is not None and verdict.request in self._round.requests:
            self._round.scored(verdict, now)
        self._take(RewardComputed(request=verdict.request, reward=verdict.reward, case_runs=verdict.case_runs))

    def _lose(self, engine_id: EngineId, error: EngineFailed) -> None:
        if engine_id in self._dead:
            return  # its pump and a call to it may both notice
        self._dead.add(engine_id)
        self._on_engine_lost(error)
        if self._engines.pop(engine_id, None) is None:
            return  # it belongs to a fleet that sleeps, of which the scheduler does not know
        if engine_id not in self._scheduler.engines:  # it died before it had joined
            if not self._engines:
                raise error
            return
        self._to_engines.pop(engine_id, None)
        lost = {request for request, holder in self._in_flight.items() if holder == engine_id}
        self._in_flight = {request: holder for request, holder in self._in_flight.items() if request not in lost}
        self._being_evicted -= lost
        self._take(EngineLost(engine=engine_id))

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

    def _carry_out(self, command: Command, now: float) -> Event | None:  # noqa: C901 one case per command
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
            case EndRound():
                self._end(command, now)
            case LendEngines():
                self._to_lend = command.engines
            case UseParallelism():
                self._next_tensor_parallel = command.tensor_parallel
            case EndRun():
                self._is_run_over = True
            case _:
                assert_never(command)
        return None

    def _begin(self, command: BeginRound, now: float) -> None:
        self._round = RoundRecord(
            begin=command, policy_version=self._policy_version, began_at_s=now, prompts=self._prompts
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
                self._being_scored.update(command.request for command in to_score)
                calls.append(self._reward.score([self._to_judge(command) for command in to_score]))
            if to_measure:
                calls.append(self._measure_progress(to_measure))
            answer: Awaitable[Any] = calls[0] if len(calls) == 1 else asyncio.gather(*calls)
            await self._patience.within(lambda: "engines and rewards to take orders", answer)
        if self._to_lend:
            await self._lend()

    async def _send_to_engine(self, engine_id: EngineId, commands: Sequence[_EngineCommand]) -> None:
        engine = self._engines[engine_id]
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
        present = [(engine_id, self._engines[engine_id]) for engine_id in engine_ids if engine_id in self._engines]
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
        engine_ids = list(self._engines)
        answers = await asyncio.gather(
            *(self._engines[engine_id].progress() for engine_id in engine_ids), return_exceptions=True
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
        self._asleep = [engine_id for engine_id in to_lend if engine_id in self._engines]
        gpus = self._fleets[self._tensor_parallel].gpus
        self._on_gpus_lent(record, frozenset(gpu for engine_id in self._asleep for gpu in gpus[engine_id]))

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
        verdicts = [f"{len(self._being_scored)} verdicts of the reward"] if self._being_scored else []
        return " and ".join(responses + verdicts) or "the next fact of any engine or reward"
