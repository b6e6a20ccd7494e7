"""The one composition of machines that a driver talks to.

    Event ──> batching (which requests start and stop) ──Decision──> router (where) ──> Command

    beside them, each where the settings have it:
    RewardComputed ──> reward budget ──> the limits in ScoreResponse
    RoundMeasured ──> parallelism planner ──> UseParallelism
    DraftsMeasured, RoundMeasured ──> speculative decoding ──> UseDraftLengths, before a round and an evaluation
    BeginRound ──> stream scaling ──> StreamGroups
    ResponseFinished, ProgressMeasured ──> stream scaling ──> MeasureProgress, LendEngines; StreamGroups, when empty
    the same ──> tail escalation ──> MeasureProgress, EscalateTail; SwitchEngines, when all engines are empty
    PolicyUpdated ──> router: Evict, or nothing where engines keep what they have; what waits is launched at StepStarted
    EvaluationOffered ──> evaluation ──Decision──> router: what becomes of held-out requests is its business alone
    TurnFinished, Environment* ──> environments ──> router, or batching and evaluation; {Open, Step, Close}Environment
    BeginRound, and every event of a round that it fills ──> evaluation ──> Launch, Evict, as the router has room
    SlotVacated, EngineStartFailed, TimerFired ──> restarts ──> SetTimer, StartEngine
    what only workers have ──> elastic ──> StartMember, FetchPolicy, Evict ..., and who is in the router's fleet

Invariant: `handle` either takes a fact in completely or raises and changes nothing; every part checks before any part
changes. A late fact changes nothing and gives no command; only budget and length history learn from it.
The requests that the router holds in flight are those that the batching machine or the evaluation waits for, whether an
engine runs them or none is there; one of the two is at rest.

Adding a machine
================

One that reacts to facts of its own becomes one more of the `Companions`: its events get cases in `_answer`. One that
refines decisions stands in `_carry_out`, as router and reward budget do. One that replaces the batching implements
`BatchingMachine`; `core.batchings` chooses it. Machines never call each other: the scheduler passes facts and decisions
along, in the order in which they stand here; `core.elastic` passes facts among those of rollout workers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, assert_never

from rollpacker.core.async_batching import AsyncBatching
from rollpacker.core.batching_machine import BatchingMachine, Decision, GivenUp, StartRequests, StopRequests
from rollpacker.core.batchings import batching_for
from rollpacker.core.commands import (
    AcceptGroup,
    BeginEvaluation,
    BeginRound,
    Command,
    DeferPrompts,
    DrawPrompts,
    DropPrompt,
    EndEvaluation,
    EndRound,
    EndRun,
    FailRun,
    FailWithoutEngines,
    ScoreResponse,
)
from rollpacker.core.companions import Companions
from rollpacker.core.elastic import Elastic, OfMember
from rollpacker.core.engine_states import Closing
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.evaluation import Evaluation, EvaluationDecision
from rollpacker.core.events import (
    MAY_STRAND,
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineRetired,
    EnginesSwitched,
    EngineStarted,
    EngineStartFailed,
    EnginesWanted,
    EngineUpdated,
    EvaluationOffered,
    Event,
    PolicyUpdated,
    ProgressMeasured,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    RoundMeasured,
    SlotsChanged,
    SlotsOpened,
    SlotVacated,
    StepStarted,
    TimerFired,
)
from rollpacker.core.ids import EngineId, RequestId, is_held_out
from rollpacker.core.restarts import Restarts
from rollpacker.core.routing import Router
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.snapshots import SNAPSHOT_FORMAT, check_snapshot, kind_of
from rollpacker.core.timers import PendingTimers


class Scheduler:
    """Decides everything about the rollouts of one run."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._batching = batching_for(settings)(settings)
        self._router = Router(together=settings.routing == "prompt")
        self._beside = Companions.of(settings)
        self._restarts = Restarts(settings.restarts)
        self._timers = PendingTimers()
        self._elastic = Elastic.of(settings.elastic, self._router, self._beside)

    def handle(self, event: Event, now: float) -> tuple[Command, ...]:
        """Take in one fact and give the orders that follow from it.

        Args:
            event: What happened.
            now: Seconds since the run began.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
        """
        commands = self._decide(event, now)
        if self._elastic:
            commands += self._elastic.follow(now)
        if self._beside.evaluation:
            commands += self._beside.evaluation.fill(self._router.rooms)
        if environments := self._beside.environments:
            commands = (*environments.close(), *commands, *environments.act(now))
        if self._beside.awaits_empty_engines:
            commands += self._beside.use_empty_engines(self._router, self._local_engines)
        self._timers.note(commands)
        return commands

    def _decide(self, event: Event, now: float) -> tuple[Command, ...]:
        if self._elastic and isinstance(event, OfMember) and self._elastic.fleet.is_member(event.engine):
            return self._elastic.handle(event, now)
        commands = self._answer(event, now)
        return commands + self._require_engine() if type(event) in MAY_STRAND else commands

    def _answer(self, event: Event, now: float) -> tuple[Command, ...]:  # noqa: C901, PLR0911, PLR0912 one case per fact
        match event:
            case ResponseFinished():
                return self._finish(event)
            case TurnFinished() | EnvironmentBegan() | EnvironmentStepped() | EnvironmentFailed():
                self._machine_of(event.request).handle(event)  # for it, the request runs on
                return self._beside.take_turn(event, now, self._router, self._conclude)
            case RewardComputed():
                return self._reward(event)
            case ResponseEvicted():
                self._machine_of(event.request).handle(event)  # for it, the request runs on
                launches = self._router.move(event.request, event.engine)
                self._router.note_answer(event.request, event.engine)
                return tuple(launches)
            case ResponseAborted():
                self._check_abort(event)
                decisions = self._machine_of(event.request).handle(event)
                self._router.note_answer(event.request, event.engine)
                return self._carry_out(decisions)
            case StepStarted():
                return self._start_step(event)
            case PolicyUpdated():
                return self._suspend(event)
            case PromptsDrawn():
                return self._carry_out(self._batching.handle(event))
            case DraftsMeasured():
                self._router.is_in_fleet(event.engine)
                self._beside.learn_drafts(event)
                return ()
            case RoundMeasured():
                return self._plan(event)
            case EvaluationOffered() | EnginesWanted():
                return self._evaluate(event, now)
            case EngineUpdated() | EngineJoined() | EngineLost() | EngineRetired():
                return self._change_fleet(event)
            case ProgressMeasured():
                return self._use_progress(event, now)
            case EnginesSwitched():
                self._beside.end_switch(event, now)
                self._router.reopen(Closing.ARRIVING)
                return tuple(self._router.launch(self.waiting))
            case SlotsOpened():
                return self._open_attempt(event, now)
            case SlotsChanged() | SlotVacated() | EngineStarted() | EngineStartFailed():
                return tuple(self._restarts.handle(event, now))
            case TimerFired():
                return self._fire(event, now)
            case _ if self._elastic:
                return self._elastic.handle(event, now)
            case _:
                raise ImpossibleEvent(f"It came in a run without rollout workers: {event}")

    # The life of a request

    def _finish(self, event: ResponseFinished) -> tuple[Command, ...]:
        """Count a finish; it may be one that makes a measurement due."""
        if self._router.has_moved(event.request, event.engine):
            self._router.note_answer(event.request, event.engine)
            return ()
        decisions = self._machine_of(event.request).handle(event)
        self._router.note_answer(event.request, event.engine)
        is_news = self._router.finish(event.request)
        commands = self._carry_out(decisions)
        if is_news and not is_held_out(event.request):
            commands += self._beside.count_finish(event.num_tokens)
        return commands

    def _conclude(self, event: ResponseFinished | GivenUp) -> tuple[Command, ...]:
        """Count in a trajectory of several turns that has finished, or will not."""
        if isinstance(event, GivenUp):
            return self._carry_out(self._batching.handle(event))
        commands = self._carry_out(self._machine_of(event.request).handle(event))
        return commands if is_held_out(event.request) else commands + self._beside.count_finish(event.num_tokens)

    def _reward(self, event: RewardComputed) -> tuple[Command, ...]:
        self._beside.validate_reward(event)
        decisions = self._machine_of(event.request).handle(event)
        self._beside.learn_reward(event)
        return self._carry_out(decisions)

    def _machine_of(self, request: RequestId) -> BatchingMachine | Evaluation:
        """The one that waits for a request."""
        if not is_held_out(request):
            return self._batching
        if self._beside.evaluation is None:
            raise ImpossibleEvent(f"{request} is of an evaluation, and this run has none.")
        return self._beside.evaluation

    def _check_abort(self, event: ResponseAborted) -> None:
        """Refuse the abort of a request that was not told to stop."""
        if not self._router.has_moved(event.request, event.engine) and self._router.is_in_flight(event.request):
            raise ImpossibleEvent(f"{event.request} was aborted, which was not ordered.", "An abort follows its order.")

    # Steps and engines

    def _start_step(self, event: StepStarted) -> tuple[Command, ...]:
        """Begin a step with all engines: the trainer has given back what was lent, and what was suspended goes on."""
        self._require_rest(event)
        running = self._batching.running_requests() if self._router.is_suspended else []
        suspended = list(filter(self._router.is_in_flight, running))
        decisions = self._batching.handle(event)
        self._router.reopen(Closing.LENT)
        if self._beside.planner:
            self._beside.planner.start_step()
        return *self._router.resume(suspended), *self._carry_out(decisions)

    def _suspend(self, event: PolicyUpdated) -> tuple[Command, ...]:
        """Order back what goes on under the new policy, or let engines keep it."""
        if not isinstance(self._batching, AsyncBatching) or self._router.is_suspended:
            raise ImpossibleEvent(f"{event} came twice, or in a synchronous run.")
        evaluation = self._beside.evaluation
        is_evaluated = evaluation is not None and evaluation.has_its_turn(event.step + 1)
        keeps = self._batching.keeps and not (event.empties_engines or is_evaluated)
        self._batching.end_step(event, keeps=keeps)
        return tuple(self._router.suspend(keeps=keeps))

    def _evaluate(self, event: EvaluationOffered | EnginesWanted, now: float) -> tuple[Command, ...]:
        """Evaluate with all engines, if it is due; or have the evaluation that fills the last round end."""
        is_busy = bool(self._batching.running_requests()) and not self._router.is_suspended
        if self._beside.evaluation is None or is_busy:
            raise ImpossibleEvent(f"It came in a round, or without held-out sets: {event}")
        if isinstance(event, EnginesWanted):
            return self._beside.evaluation.wind_up(event, now)
        self._require_rest(event)
        decisions = self._beside.evaluation.handle(event)
        self._router.reopen(Closing.LENT)
        return self._carry_out(decisions)

    def _require_rest(self, event: StepStarted | EvaluationOffered) -> None:
        """Refuse to begin while engines change, during an evaluation, or with another policy version."""
        is_changing = self._router.is_changing or self._router.is_suspending
        if is_changing or (self._beside.evaluation and self._beside.evaluation.is_open):
            raise ImpossibleEvent(f"{event} came before the engines had changed, or during an evaluation.")
        self._router.require_version(event.policy_version)

    def _plan(self, event: RoundMeasured) -> tuple[Command, ...]:
        """Change the engines for the next round, if the planner says so."""
        orders = self._beside.measure(event, self._batching.next_kind())
        if orders:
            self._router.close(self._local_engines, Closing.RETIRING)
        return orders

    def _change_fleet(self, event: EngineUpdated | EngineJoined | EngineLost | EngineRetired) -> tuple[Command, ...]:
        launches = self._beside.give_back(event, self._router)
        match event:
            case EngineUpdated():
                self._router.update(event.engine, event.policy_version)
                return ()
            case EngineJoined():
                launches += self._router.join(event.engine, event.policy_version, event.kv_tokens, self._beside.closing)
            case EngineLost() if self._restarts.knows(event.engine) and event.engine not in self._router.known:
                return ()  # it died before it had joined
            case EngineLost():
                launches += self._router.lose(event.engine)
            case EngineRetired():
                self._router.retire(event.engine)
            case _:
                assert_never(event)
        self._beside.follow_fleet(event)
        if isinstance(event, EngineJoined):
            self._restarts.join(event.engine)
        return tuple(launches)

    def _open_attempt(self, event: SlotsOpened, now: float) -> tuple[Command, ...]:
        """Begin an attempt of the run: forget slots and workers of the one before, and their timers."""
        of_workers = self._elastic.timers_among(self._timers.at_s) if self._elastic else ()
        self._timers.forget((*self._restarts.timers, *of_workers))
        self._beside.open_attempt()
        return *self._restarts.handle(event, now), *(self._elastic.begin() if self._elastic else ())

    def _fire(self, event: TimerFired, now: float) -> tuple[Command, ...]:
        """Do what a timer is for."""
        self._timers.fire(event)
        orders: list[Command] = [*self._restarts.handle(event, now)]
        orders += self._elastic.fire(event, now) if self._elastic else ()
        return *orders, *self._beside.fire(event, now, self._conclude)

    def _require_engine(self) -> tuple[FailWithoutEngines, ...]:
        """Fail when no engine is there, or to come, for the requests that wait, or for the next round."""
        may_come = self._restarts.under_way or self._beside.have_engines_to_come
        is_starved = bool(self._restarts.slots) and self._router.is_stranded and not may_come
        return (FailWithoutEngines(),) if is_starved or self._restarts.is_hopeless else ()

    def _use_progress(self, event: ProgressMeasured, now: float) -> tuple[Command, ...]:
        """Move requests, or lend or change engines, if the measurement says that it pays."""
        for progress in event.engines:
            self._router.is_in_fleet(progress.engine)
        if self._elastic and self._beside.balance and self._beside.balance.awaits(event):
            return self._elastic.level(event, now)
        return self._beside.take_progress(event, self._local_engines, self._router, now)

    # Decisions

    def _carry_out(self, decisions: Sequence[Decision | EvaluationDecision]) -> tuple[Command, ...]:
        """Turn decisions into commands: the router says where requests start and stop."""
        commands: list[Command] = []
        for decision in decisions:
            match decision:
                case StartRequests():
                    commands += self._router.launch(self._beside.start(decision.requests))
                case StopRequests():
                    commands += self._router.abort(self._beside.stop(decision.requests, self._batching.handle))
                case ScoreResponse():
                    commands.append(self._beside.with_limits(decision))
                case BeginRound():
                    commands += decision, *self._beside.begin_round(decision)
                case EndRound() | DropPrompt() | EndRun():
                    self._beside.follow_round(decision)
                    commands.append(decision)
                case BeginEvaluation():
                    commands.append(decision)
                    if self._beside.drafts:
                        commands.append(self._beside.drafts.order(self._beside.tensor_parallel))
                case AcceptGroup() | DeferPrompts() | DrawPrompts() | FailRun() | EndEvaluation():
                    commands.append(decision)
                case _:
                    assert_never(decision)
        return tuple(commands)

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """The engines that are there, in joining order, lent ones too."""
        return self._router.engines

    def is_in_flight(self, request: RequestId) -> bool:
        """Whether a request is on an engine, or waits for one."""
        return self._router.is_in_flight(request)

    @property
    def keeps_requests(self) -> bool:
        """True while engines get new weights with requests in flight."""
        return self._router.keeps_requests

    @property
    def due(self) -> Mapping[RequestId, EngineId | None]:
        """In an asynchronous run, what the batch of this step cannot do without, and the engine that has it."""
        due = self._batching.due_requests() if isinstance(self._batching, AsyncBatching) else []
        return {request: self._router.holders[request] for request in due if self._router.is_in_flight(request)}

    @property
    def _local_engines(self) -> tuple[EngineId, ...]:
        """Those that no worker has."""
        if self._elastic is None:
            return self._router.engines
        return tuple(engine for engine in self._router.engines if not self._elastic.fleet.is_member(engine))

    @property
    def waiting(self) -> tuple[RequestId, ...]:
        """The requests that wait for an engine, in launch order."""
        return tuple(request for request, holder in self._router.holders.items() if holder is None)

    @property
    def beside(self) -> Companions:
        """Where the other machines stand; to be read only."""
        return self._beside

    @property
    def timers(self) -> Mapping[str, float]:
        """When each timer is due that has not fired: a driver sets them again after a restore."""
        return self._timers.at_s

    @property
    def restarts(self) -> Restarts:
        """Where the slots of engines stand; to be read only."""
        return self._restarts

    def check(self) -> None:
        """Re-derive all invariants from scratch; costs as much as the state is large.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        self._batching.check()
        running = [*self._batching.running_requests()]
        if self._beside.evaluation:
            running += self._beside.evaluation.running_requests()
        self._router.check(self._beside.generating(running))
        self._restarts.check()
        self._beside.check(self._local_engines)
        if self._elastic:
            self._elastic.check()

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the scheduler; legal between any two events."""
        return {
            "format": SNAPSHOT_FORMAT,
            "kind": kind_of(self._settings),
            "batching": self._batching.snapshot(),
            "router": self._router.snapshot(),
            **self._beside.snapshot(),
            "restarts": self._restarts.snapshot(),
            "timers": self._timers.snapshot(),
            **({"elastic": self._elastic.snapshot()} if self._elastic else {}),
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild a scheduler that gives the same commands as the one that gave the snapshot.

        A new attempt of a run reports its engines again: `EngineJoined` under a known name is a restart, and engines
        that did not come back are reported by `EngineLost`.

        Raises:
            CheckpointError: The snapshot is of another format, another kind of batching, or other machines.
        """
        check_snapshot(settings, snapshot)
        scheduler = cls(settings)
        scheduler._batching = batching_for(settings).restore(settings, snapshot["batching"])
        scheduler._router = Router.restore(snapshot["router"], together=settings.routing == "prompt")
        scheduler._beside = Companions.restore(settings, snapshot)
        scheduler._restarts = Restarts.restore(settings.restarts, snapshot["restarts"])
        scheduler._timers = PendingTimers.restore(snapshot["timers"])
        scheduler._elastic = Elastic.of(settings.elastic, scheduler._router, scheduler._beside, snapshot.get("elastic"))
        return scheduler
