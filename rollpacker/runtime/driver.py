"""The driver: feeds facts to the scheduler and carries its commands out, and decides nothing.

    engines ── collect ──┐                                   ┌── generate, abort ──> engines
    rewards ── collect ──┴─> inbox ─> Scheduler.handle ─> outbox ── score ─────────> rewards
    order   <─ DrawPrompts ──────────────┘        └─> AcceptGroup, EndRound: the batch

One pump per engine and per reward brings facts into the inbox; one loop takes them out, in order of arrival. Commands
that one batch of facts led to are sent together, one call per engine, in the order in which they were given. The
driver knows engines and rewards by protocol only, so it cannot tell real ones from modelled ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, assert_never

from rollpacker.config.schema import DeadlineSection, RolloutSection
from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginRound,
    Command,
    DrawPrompts,
    EndRound,
    EndRun,
    Launch,
    ScoreResponse,
)
from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.core.events import (
    EngineJoined,
    EngineLost,
    Event,
    ResponseAborted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.core.scheduler import Scheduler
from rollpacker.data.order import PromptOrder
from rollpacker.protocols.engine import Engine, EngineStats
from rollpacker.protocols.reward import ResponseToScore, RewardService
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, TokenizedPrompt, Verdict
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.clock import RunClock
from rollpacker.runtime.round_record import RoundRecord
from rollpacker.runtime.watchdog import Watchdog

OnEvent = Callable[[Event, float, tuple[Command, ...]], None]
"""Told of every event with its time and the commands that followed: the event log."""

OnProgress = Callable[[int, int], None]
"""Told of groups accepted and groups needed."""


@dataclass(frozen=True, slots=True)
class _Responses:
    engine: EngineId
    responses: Sequence[Response]


@dataclass(frozen=True, slots=True)
class _Verdicts:
    verdicts: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class _EngineDied:
    engine: EngineId
    error: EngineFailed


_Fact = _Responses | _Verdicts | _EngineDied | Exception
"""What pumps put into the inbox; an exception is raised again by the loop."""


def sample_seed(run_seed: int, step: int, prompt: PromptId, sample: int) -> int:
    """The seed of one sample: a function of its names, so that no other sample can change it. 63 bits."""
    name = f"{run_seed}/{step}/{prompt.epoch}/{prompt.key}/{sample}".encode()
    return int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "little") >> 1


class Driver:
    """Runs rollout rounds over any engines and any reward."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        order: PromptOrder,
        prompts: Mapping[str, TokenizedPrompt],
        engines: Mapping[EngineId, Engine],
        reward: RewardService,
        rollout: RolloutSection,
        deadlines: DeadlineSection,
        seed: int,
        clock: RunClock,
        watchdog: Watchdog,
        on_event: OnEvent,
        on_progress: OnProgress,
        on_engine_lost: Callable[[EngineFailed], None],
    ) -> None:
        self._scheduler = scheduler
        self._order = order
        self._prompts = prompts
        self._engines = dict(engines)
        self._reward = reward
        self._rollout = rollout
        self._deadlines = deadlines
        self._seed = seed
        self._clock = clock
        self._watchdog = watchdog
        self._on_event = on_event
        self._on_progress = on_progress
        self._on_engine_lost = on_engine_lost

        self._inbox: asyncio.Queue[_Fact] = asyncio.Queue()
        self._pumps: list[asyncio.Task[None]] = []
        self._to_engines: dict[EngineId, list[Launch | Abort]] = {}
        self._to_score: list[RequestId] = []
        self._in_flight: dict[RequestId, EngineId] = {}
        self._being_scored: set[RequestId] = set()
        self._round: RoundRecord | None = None
        self._policy_version = 0
        self._step = 0
        self._is_run_over = False

    @property
    def engines(self) -> Mapping[EngineId, Engine]:
        """The engines that are alive."""
        return self._engines

    def start(self) -> None:
        """Report the engines to the scheduler and listen to them."""
        for engine_id in self._engines:
            self._take(EngineJoined(engine=engine_id))
        for engine_id in self._scheduler.engines:  # a restored scheduler may know engines of an earlier attempt
            if engine_id not in self._engines:
                self._take(EngineLost(engine=engine_id))
        for engine_id, engine in self._engines.items():
            self._listen(self._pump_engine(engine_id, engine), f"responses of {engine_id}")
        self._listen(self._pump_reward(), "verdicts")

    async def stop(self) -> None:
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
        """Wait until every engine has confirmed its aborts: no request is in flight when new weights arrive."""
        while self._in_flight:
            await self._digest()

    async def publish(self, weights: Weights) -> None:
        """Give every engine the new policy; raises `WeightSyncFailed` unless each holds exactly these weights."""
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

    async def engine_stats(self) -> dict[EngineId, EngineStats]:
        """The statistics of every engine that is alive."""
        engine_ids = list(self._engines)
        stats = await asyncio.gather(*(self._engines[engine_id].stats() for engine_id in engine_ids))
        return dict(zip(engine_ids, stats, strict=True))

    def _is_batch_complete(self) -> bool:
        return self._round is not None and self._round.order is not None

    # Facts in ------------------------------------------------------------------------------------------------------

    def _listen(self, pump: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.create_task(pump, name=f"pump: {what}")
        self._pumps.append(task)

    async def _pump_engine(self, engine_id: EngineId, engine: Engine) -> None:
        try:
            while True:
                self._inbox.put_nowait(_Responses(engine_id, await engine.collect()))
        except EngineFailed as error:
            self._inbox.put_nowait(_EngineDied(engine_id, error))
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `_digest`)
            self._inbox.put_nowait(error)

    async def _pump_reward(self) -> None:
        try:
            while True:
                self._inbox.put_nowait(_Verdicts(await self._reward.collect()))
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `_digest`)
            self._inbox.put_nowait(error)

    async def _digest(self) -> None:
        """Wait for facts, report them to the scheduler, and send what it orders."""
        fact = await self._watchdog.within(self._deadlines.rollout_stall_s, self._describe_wait, self._inbox.get())
        self._report(fact)
        while not self._inbox.empty():
            self._report(self._inbox.get_nowait())
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
        if self._in_flight.get(request) == engine_id:  # else it was lost with its engine and runs elsewhere by now
            del self._in_flight[request]
            assert self._round is not None
            self._round.came_back(response, now)
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
        self._take(RewardComputed(request=verdict.request, reward=verdict.reward))

    def _lose(self, engine_id: EngineId, error: EngineFailed) -> None:
        if self._engines.pop(engine_id, None) is None:
            return  # its pump and a call to it may both notice
        self._on_engine_lost(error)
        self._to_engines.pop(engine_id, None)
        self._in_flight = {request: holder for request, holder in self._in_flight.items() if holder != engine_id}
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
                match command:
                    case DrawPrompts():
                        events.append(self._order.draw(command.domain, command.num_prompts))
                    case BeginRound():
                        self._begin(command, now)
                    case Launch() | Abort():
                        self._to_engines.setdefault(command.engine, []).append(command)
                    case ScoreResponse():
                        self._to_score.append(command.request)
                    case AcceptGroup():
                        self._accept(command)
                    case EndRound():
                        self._end(command, now)
                    case EndRun():
                        self._is_run_over = True
                    case _:
                        assert_never(command)

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
        while self._to_engines or self._to_score:
            to_engines, self._to_engines = self._to_engines, {}
            to_score, self._to_score = self._to_score, []
            calls: list[Coroutine[Any, Any, None]] = [
                self._send_to_engine(engine_id, commands) for engine_id, commands in to_engines.items()
            ]
            if to_score:
                self._being_scored.update(to_score)
                calls.append(self._reward.score([self._to_judge(request) for request in to_score]))
            await self._watchdog.within(
                self._deadlines.rollout_stall_s, "engines and rewards to take orders", asyncio.gather(*calls)
            )

    async def _send_to_engine(self, engine_id: EngineId, commands: Sequence[Launch | Abort]) -> None:
        engine = self._engines[engine_id]
        try:
            for kind, run in itertools.groupby(commands, key=type):
                requests = [command.request for command in run]
                if kind is Launch:
                    await engine.generate([self._to_generate(engine_id, request) for request in requests])
                else:
                    await engine.abort(requests)
        except EngineFailed as error:
            self._lose(engine_id, error)

    def _to_generate(self, engine_id: EngineId, request: RequestId) -> GenerationRequest:
        assert self._round is not None
        self._in_flight[request] = engine_id
        self._round.launched(request, engine_id, self._clock.now())
        return GenerationRequest(
            request=request,
            prompt_token_ids=self._prompts[request.prompt.key].token_ids,
            seed=sample_seed(self._seed, self._step, request.prompt, request.sample),
            max_response_tokens=self._rollout.max_response_tokens,
            temperature=self._rollout.temperature,
        )

    def _to_judge(self, request: RequestId) -> ResponseToScore:
        assert self._round is not None
        response = self._round.requests[request].response
        assert response is not None
        return ResponseToScore(
            request=request,
            prompt=self._prompts[request.prompt.key].prompt,
            token_ids=response.token_ids,
            is_truncated=response.finish_reason is FinishReason.LENGTH,
        )

    def _describe_wait(self) -> str:
        per_engine: dict[EngineId, int] = {}
        for engine_id in self._in_flight.values():
            per_engine[engine_id] = per_engine.get(engine_id, 0) + 1
        responses = [f"{count} responses of {engine_id}" for engine_id, count in sorted(per_engine.items())]
        verdicts = [f"{len(self._being_scored)} verdicts of the reward"] if self._being_scored else []
        return " and ".join(responses + verdicts) or "the next fact of any engine or reward"
