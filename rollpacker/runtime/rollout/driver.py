"""The driver: feeds facts to the scheduler and carries its commands out, and decides nothing.

    engines ── collect ──┐                                   ┌── generate, abort ──> engines
    rewards ── collect ──┴─> inbox ─> Scheduler.handle ─> orders ── score ─────────> rewards
    order   <─ DrawPrompts ──────────────┘        ├─> AcceptGroup, EndRound: the batch
    trainer <─ StreamGroups ──────────────────────┘

A task of its own takes facts out of the inbox (`inbox.py`) in order of arrival; the pipeline awaits the next batch.
Commands of one moment go together (`orders.py`) to engines (`engines.py`) and reward (`reward_client.py`), each over a
line of its own. It knows them by protocol only, so it cannot tell real ones from modelled ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import assert_never

from rollpacker.core.commands import (
    Abort,
    AcceptGroup,
    BeginEvaluation,
    BeginRound,
    CancelStart,
    Command,
    DeferPrompts,
    DrawPrompts,
    DropPrompt,
    EndEvaluation,
    EndRound,
    EndRun,
    Evict,
    FailRun,
    FailWithoutEngines,
    Launch,
    LendEngines,
    ScoreResponse,
    SetTimer,
    StartEngine,
    StreamGroups,
    UseDraftLengths,
    UseParallelism,
)
from rollpacker.core.errors import EngineFailed
from rollpacker.core.events import (
    EngineLost,
    EnginesWanted,
    EvaluationOffered,
    Event,
    PolicyUpdated,
    ResponseAborted,
    ResponseEvicted,
    RewardComputed,
    StepStarted,
    TimerFired,
)
from rollpacker.core.ids import EngineId, is_held_out
from rollpacker.core.scheduler import Scheduler
from rollpacker.data.order import PromptOrder
from rollpacker.protocols.engine import Engine
from rollpacker.protocols.environment import EnvironmentParts
from rollpacker.protocols.reward import RewardService
from rollpacker.protocols.rollout import FinishReason, GenerationRequest, Response, Verdict
from rollpacker.protocols.tasks import end_tasks
from rollpacker.protocols.weights import Published, WeightSync
from rollpacker.rewards.remote import longest_first_verdict_s
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.awaiting import Awaiting
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.costs import RoundCosts, RoundMeter, measurements
from rollpacker.runtime.rollout.elastic import Elastic, ElasticCommand
from rollpacker.runtime.rollout.engines import Engines
from rollpacker.runtime.rollout.evaluation_record import EvaluationRecord
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.inbox import EngineDied, EngineReady, Fact, Inbox, ResponsesArrived, VerdictsArrived
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.listeners import Listeners
from rollpacker.runtime.rollout.members import MemberEngines
from rollpacker.runtime.rollout.orders import EngineOrders
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.rollout.requests import SamplingRules
from rollpacker.runtime.rollout.reward_client import RewardClient
from rollpacker.runtime.rollout.rounds import Rounds
from rollpacker.runtime.rollout.scheduling import too_few_left
from rollpacker.runtime.rollout.switching import SwitchCommand, Switching
from rollpacker.runtime.rollout.timers import Timers
from rollpacker.runtime.rollout.trajectories import EnvironmentCommand, Trajectories
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.runtime.waiting.watchdog import Watchdog


class Driver:
    """Runs rollout rounds over any engines and any reward."""

    def __init__(
        self,
        *,
        scheduler: Scheduler,
        order: PromptOrder,
        fleet: FleetParts,
        reward: RewardService,
        sampling: SamplingRules,
        clock: RunClock,
        watchdog: Watchdog,
        interval_log: IntervalLog,
        listeners: Listeners,
        environments: EnvironmentParts | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._order = order
        self._clock, self._listeners = clock, listeners
        self._inbox = inbox = Inbox()
        stall_s, stop_s = fleet.deadlines.rollout_stall_s, fleet.deadlines.stop_s
        verdict_s = longest_first_verdict_s(sampling.rewards)
        act_s = max(environments.longest_call_s, scheduler.beside.start_interval_s) if environments else 0.0
        self._wait = Awaiting(watchdog, stall_s + max(verdict_s, act_s), self._describe_wait)  # nothing else may come
        self._reward = RewardClient(
            reward,
            check_of=sampling.rewards.name_of,
            watchdog=watchdog,
            stall_s=stall_s + verdict_s,
            on_verdicts=lambda verdicts: inbox.put(VerdictsArrived(verdicts)),
            on_error=inbox.put,
        )
        self.pause_reward, self.resume_reward = self._reward.pause, self._reward.resume
        self._rounds = Rounds(sampling)
        self._members = MemberEngines(
            fleet,
            report=self._take_aside,
            on_gone=lambda engine_id: self._orders.forget(engine_id),  # noqa: PLW0108  it comes later
            book_of=self._rounds.book_of,
            inbox=inbox,
            clock=clock,
            interval_log=interval_log,
            note=listeners.note,
        )
        self._engines = Engines(
            fleet,
            scheduler=scheduler,
            report=self._take_of_engine,
            report_aside=self._take_aside,
            inbox=inbox,
            members=self._members,
            clock=clock,
            interval_log=interval_log,
            note=listeners.note,
        )
        self.leave_gpus, self.turnover = self._engines.leave_gpus, self._engines.turnover
        self.take_evaluation = self._rounds.take_evaluation
        self._orders = EngineOrders(self._engines, self._to_generate, on_accepted=self._wait.extend, on_error=inbox.put)
        self._aside = Aside(on_end=self._wait.look, on_error=self._wait.fail)
        self._to_score: list[ScoreResponse] = []
        self._timers = Timers(clock, lambda timer: self._take_aside(TimerFired(timer=timer)))
        self._meter = RoundMeter(self._engines, self._members)
        self._switching = Switching(self._engines, self._meter, self._aside, self._take_aside)
        self._trajectories = Trajectories(environments, self._rounds, clock, self._take_aside, inbox.put, stop_s=stop_s)
        self.elastic = Elastic(
            self._engines,
            self._members,
            aside=self._aside,
            report=self._take_aside,
            on_reclaim=listeners.on_reclaim,
            clock=clock,
            under_way=lambda: self._rounds.live,
        )
        self._is_run_over = False
        self._sending: asyncio.Handle | None = None
        self._digesting: asyncio.Task[None] | None = None

    @property
    def engines(self) -> Mapping[EngineId, Engine]:
        """Of the fleet in use, those that are alive."""
        return self._engines.present

    @property
    def has_lent(self) -> bool:
        """Engines sleep, whose GPUs the trainer has in the midst of a round."""
        return self._engines.num_lent > 0

    def rollouts(self) -> RequestBook | None:
        """What a checkpoint needs of responses under way; None in a synchronous run, which has none between steps."""
        return self._rounds.live.copy() if self._rounds.goes_on else None

    def restore(self, rollouts: RequestBook) -> None:
        """Go on from the responses of a checkpoint."""
        self._rounds.live = rollouts

    async def start(self) -> None:
        """Report the engines to the scheduler, and listen to them. They hold the first policy."""
        self._reward.start()
        await self._meter.begin(await self._engines.start())
        self.elastic.start()
        unscored = self._trajectories.to_score(self._rounds.live.unscored, self._scheduler)
        self._reward.add(self._rounds.scoring(ScoreResponse(request=each) for each in unscored))
        for timer, at_s in self._scheduler.timers.items():
            self._timers.set(timer, at_s)
        self._trajectories.start(self._scheduler)
        self._digesting = asyncio.create_task(self._digest(), name="driver")

    async def stop(self, *, ends_environments: bool = True) -> None:
        self._timers.stop()
        await end_tasks(self._digesting)
        for part in (self._members, self._aside, self._trajectories, self._orders, self._engines, self._reward):
            await part.stop()
        self._wait.close()
        await self._inbox.stop()
        if ends_environments:
            await self._trajectories.end_environments()

    def interrupt(self, error: Exception) -> None:
        """End the round that runs with an error of someone else's: its batch could not be trained."""
        self._inbox.put(error)

    async def end_engines(self, slots: Collection[EngineId]) -> None:
        """End engines whatever they do: the run leaves, and its trainer needs their GPUs for a last checkpoint."""
        await self.stop(ends_environments=False)
        await self._engines.end(slots)

    async def next_batch(self, step: int) -> Batch | None:
        """Roll out the batch of one step; None when all data has been trained or dropped.

        Raises:
            DataError: Too few prompts have rewards that differ.
        """
        self._trajectories.end_batch()
        self._rounds.batch = None
        self._take(StepStarted(step=step, policy_version=self._engines.policy_version))
        await self._wait.until(lambda: self._is_run_over or self._rounds.is_batch_complete)
        if not self._is_run_over:
            return self._rounds.batch
        await self._wait.until(lambda: not self._aside.is_any)  # engines may be about to be lent
        return None

    async def evaluate(self, step: int, *, is_last: bool) -> EvaluationRecord | None:
        """Generate and score the held-out responses after so many steps; None when no evaluation of its own is due."""
        self._take(EvaluationOffered(step=step, policy_version=self._engines.policy_version, is_last=is_last))
        if (record := self._rounds.evaluation) is not None:
            await self._wait.until(lambda: record.is_over)
            await self._meter.begin()
        return self._rounds.take_evaluation()

    async def quiesce(self, *, empties_engines: bool = False, settles_rewards: bool = False) -> None:
        """Wait until every engine has given back what it had: no request is in flight when new weights arrive.

        In a synchronous run, what the batch was complete without is aborted, and the reward does not go on with it; an
        evaluation that fills the round has some time to end. In an asynchronous run, what is under way is suspended or
        kept, and the reward goes on; ahead of a checkpoint its verdicts are waited for, so that none is lost.
        """
        if self._rounds.is_filled:
            self._take(EnginesWanted(step=self._rounds.current.begin.step))
            await self._wait.until(lambda: not self._rounds.is_filled)
        if self._rounds.goes_on:
            step, version = self._rounds.current.begin.step, self._engines.policy_version + 1
            self._take(PolicyUpdated(step=step, policy_version=version, empties_engines=empties_engines))
        else:
            self._reward.forget()
        empties = not self._scheduler.keeps_requests
        await self._wait.until(lambda: not (self._orders.are_owed(responses=empties) or self._aside.is_any))
        await self._wait.until(lambda: not (settles_rewards and self._reward.is_busy))

    async def measure_round(self) -> RoundCosts:
        """Measure what the last round cost, and report it to the scheduler."""
        batch, costs = self._rounds.current, await self._meter.measure()
        for event in measurements(batch, costs, self._engines.take_switch_time_s()):
            self._take(event)
        return replace(costs, parallelism_gain=self._scheduler.beside.parallelism_gain)

    async def publish(self, sync: WeightSync) -> Published:
        """Wake the engines of the next round and give each the new policy; those that do not get it are lost.

        Raises:
            WeightSyncFailed: None of them holds exactly the trainer's weights.
        """
        degree = self._engines.tensor_parallel
        await self.elastic.publish(sync)
        published = await self._engines.publish(sync)
        if self._digesting is not None and self._engines.tensor_parallel != degree:
            await self._meter.begin()
        return published

    @property
    def longest_switch_s(self) -> float:
        """How long `publish` may change the degree; 0 where it does not, or if no process starts."""
        return self._engines.longest_switch_s

    # Facts in

    async def _digest(self) -> None:
        """Report facts to the scheduler as they come."""
        try:
            while True:
                for fact in await self._inbox.collect():
                    self._report(fact)
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `until`)
            self._wait.fail(error)

    def _report(self, fact: Fact) -> None:
        now = self._clock.now()
        match fact:
            case ResponsesArrived(engine_id, responses):
                for response in responses:
                    self._report_response(engine_id, response, now)
            case VerdictsArrived(verdicts):
                for verdict in verdicts:
                    self._report_verdict(verdict, now)
            case EngineDied(engine_id, failure):
                self._engines.lose(engine_id, failure)
            case EngineReady(engine_id):
                self._engines.join(engine_id)
            case _:
                raise fact

    def _report_response(self, engine_id: EngineId, response: Response, now: float) -> None:
        request, book = response.request, self._rounds.book_of(response.request)
        if book.is_outdated(response):
            return
        if book.contradicts(response):
            self._engines.lose(engine_id, EngineFailed(f"{engine_id} gave {request} other tokens than it had."))
            return
        is_held, is_evicted = self._orders.came_back(request, engine_id)
        is_aborted = response.finish_reason is FinishReason.ABORTED
        if is_held:
            book.came_back(response, now)
            if not (is_aborted or is_held_out(request) or self._rounds.is_batch_complete):
                self._rounds.current.generated_at_s = now
        if is_aborted:
            kind = ResponseEvicted if is_evicted else ResponseAborted
            self._take(kind(request=request, engine=engine_id, num_tokens=response.num_tokens))
        elif is_held or not self._trajectories.are_any:  # else it is a turn that was told of before
            self._take(self._trajectories.ended(engine_id, response))

    def _report_verdict(self, verdict: Verdict, now: float) -> None:
        self._rounds.book_of(verdict.request).scored(verdict, now)
        self._take(RewardComputed(request=verdict.request, reward=verdict.reward, case_runs=verdict.case_runs))

    # Commands out

    def _take_of_engine(self, event: Event) -> None:
        """Report what became of an engine; what was in flight on a lost one is launched elsewhere."""
        if isinstance(event, EngineLost):
            self._orders.forget(event.engine)
        self._take(event)

    def _take_aside(self, event: Event) -> None:
        """Report what happened beside the facts of the inbox, at any time."""
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001  (a task's boundary: raised again by `until`)
            self._inbox.put(error)

    def _take(self, event: Event) -> None:
        """Report one event, and carry out what it leads to; drawing prompts leads to further events."""
        events = deque([event])
        while events:
            event = events.popleft()
            now = self._clock.now()
            commands = self._scheduler.handle(event, now)
            self._listeners.on_event(event, now, commands)
            self._wait.note(event, commands)
            for command in commands:
                if (answer := self._carry_out(command, now)) is not None:
                    events.append(answer)
        if self._sending is None:  # what the facts of this pass of the event loop lead to is sent together
            self._sending = asyncio.get_running_loop().call_soon(self._send)

    def _carry_out(self, command: Command, now: float) -> Event | None:  # noqa: C901, PLR0912, PLR0915 one case per command
        """Carry out one command; gives its answer where that is known at once."""
        if isinstance(command, ElasticCommand):
            self.elastic.carry_out(command)
            return None
        if isinstance(command, EnvironmentCommand):
            self._trajectories.carry_out(command)
            return None
        if isinstance(command, SwitchCommand):
            self._switching.carry_out(command)
            return None
        match command:
            case DrawPrompts():
                return self._order.draw(command.domain, command.num_prompts)
            case Launch() | Abort() | Evict():
                self._orders.add(command)
            case ScoreResponse() if (rewarded := self._trajectories.reward(command)) is not None:
                return rewarded
            case ScoreResponse():
                self._to_score.append(command)
            case BeginRound():
                self._rounds.begin(command, self._engines.policy_version, now)
            case BeginEvaluation():
                fills = self._scheduler.beside.is_filled
                self._rounds.begin_evaluation(command, self._engines.policy_version, now, fills=fills)
            case EndEvaluation():
                self._rounds.end_evaluation(now)
            case AcceptGroup():
                batch = self._rounds.accept(command)
                self._listeners.on_progress(len(batch.accepted), batch.begin.num_prompts_needed)
            case DeferPrompts():
                self._rounds.current.num_deferred_at_once = len(command.prompts)
            case DropPrompt():
                self._rounds.drop(command)
            case EndRound():
                self._rounds.end(command, now)
            case LendEngines():
                self._rounds.current.lend(now, self._scheduler.beside.environments)
            case StreamGroups():
                self._aside.begin_in_turn(self._stream(command), "engines to be lent")
            case UseDraftLengths():
                self._orders.use_draft_lengths(command.rules)
            case UseParallelism():
                self._engines.next_tensor_parallel = command.tensor_parallel
            case SetTimer():
                self._timers.set(command.timer, command.at_s)
            case StartEngine():
                self._engines.start_engine(command.slot, command.engine)
            case CancelStart():
                self._engines.cancel_start(command.engine)
            case FailWithoutEngines():
                raise self._engines.none_left()
            case FailRun():
                raise too_few_left(command, has_environments=self._trajectories.are_any)
            case EndRun():
                self._is_run_over = True
            case _:
                assert_never(command)
        return None

    def _send(self) -> None:
        """Send what has gathered; no fact waits for an answer."""
        self._sending = None
        self._orders.send()
        to_score, self._to_score = self._rounds.scoring(self._to_score), []
        if to_score:
            self._reward.add(to_score, is_filling=self._rounds.is_filled)
        self._wait.look()

    async def _stream(self, command: StreamGroups) -> None:
        """Put the engines that are lent to sleep; all of them are empty. Then groups stream on their GPUs."""
        batch = self._rounds.current
        gpus = await self._engines.lend(command.engines) if command.engines else None
        self._listeners.on_stream(batch, gpus, command.groups_per_call)

    def _to_generate(self, launch: Launch) -> GenerationRequest:
        is_needed = self._scheduler.is_in_flight(launch.request)
        return self._rounds.generation(launch, self._engines.policy_version, self._clock.now(), is_needed=is_needed)

    def _describe_wait(self) -> str:
        waits = self._orders.describe_wait(self._scheduler.due) + self._reward.describe_wait()
        return " and ".join(waits + self._engines.describe_wait()) or "a fact of any engine, reward or environment"
