"""The machines that stand beside batching and router, each where the settings have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from rollpacker.core.balance import Balance
from rollpacker.core.commands import (
    BeginRound,
    Command,
    DropPrompt,
    EndRound,
    EndRun,
    Launch,
    LendEngines,
    MeasureProgress,
    RoundKind,
    ScoreResponse,
)
from rollpacker.core.engine_states import Closing
from rollpacker.core.environment_events import EnvironmentEvent
from rollpacker.core.environments import Conclude, Environments, Note
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.evaluation import Evaluation
from rollpacker.core.events import (
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineRetired,
    EnginesSwitched,
    EngineUpdated,
    ProgressMeasured,
    RewardComputed,
    RoundMeasured,
    TimerFired,
)
from rollpacker.core.ids import EngineId, RequestId, is_held_out
from rollpacker.core.parallelism import ParallelismPlanner
from rollpacker.core.progress import validate_progress
from rollpacker.core.reward_budget import RewardBudget
from rollpacker.core.routing import Router
from rollpacker.core.seeding import Seeding
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.speculative_decoding import SpeculativeDecoding
from rollpacker.core.stream_scaling import StreamScaling
from rollpacker.core.tail_escalation import TailEscalation


@dataclass(slots=True, kw_only=True)
class Companions:
    """Those that the settings ask for; None is one that they leave out."""

    budget: RewardBudget | None
    planner: ParallelismPlanner | None
    escalation: TailEscalation | None
    """Only with a planner."""
    drafts: SpeculativeDecoding | None
    stream: StreamScaling | None
    evaluation: Evaluation | None
    seeding: Seeding | None
    """Only with a stream trainer that engines can be lent to."""
    balance: Balance | None
    """Only in a run with rollout workers."""
    environments: Environments | None
    replaces_dropped: bool
    """Whether another prompt takes the place of one that is dropped."""
    start_interval_s: float
    """From one environment's start to the next one's, at least."""

    @classmethod
    def of(cls, settings: SchedulerSettings) -> Self:
        """Make them for a run that begins."""
        return cls.restore(settings, {})

    @property
    def tensor_parallel(self) -> int | None:
        """The degree that a round begins with; None without a planner."""
        return self.planner.in_use if self.planner else None

    @property
    def parallelism_gain(self) -> float | None:
        """The last measured round's rate over that of the last of its kind on another degree; None if unknown."""
        return self.planner.gain if self.planner else None

    @property
    def is_filled(self) -> bool:
        """Whether an evaluation runs in the slots of the round."""
        return self.evaluation is not None and self.evaluation.is_filling

    def begin_round(self, decision: BeginRound) -> tuple[Command, ...]:
        """Tell those that watch rounds."""
        for watcher in (self.seeding, self.balance, self.planner, self.escalation):
            if watcher:
                watcher.begin_round(decision)
        streams = self.stream.begin_round(decision) if self.stream else ()
        lengths = (self.drafts.begin_round(decision, self.tensor_parallel),) if self.drafts else ()
        return *lengths, *streams, *(self.evaluation.begin_round(decision) if self.evaluation else ())

    def follow_round(self, decision: EndRound | DropPrompt | EndRun) -> None:
        """Tell them how the round goes on, or that it is over."""
        if isinstance(decision, DropPrompt):
            if self.stream and self.replaces_dropped:
                self.stream.count_drop()
            return
        for watcher in (self.seeding, self.balance, self.stream):
            if watcher:
                watcher.end_round()
        for machine in (self.planner, self.drafts, self.escalation):
            if machine and isinstance(decision, EndRound):
                machine.end_round()

    def give_back(
        self, event: EngineUpdated | EngineJoined | EngineLost | EngineRetired, router: Router
    ) -> list[Launch]:
        """Let engines serve on that are not lent after all, since one that they were to be lent with comes or goes."""
        is_news = isinstance(event, EngineJoined | EngineLost)
        kept = self.stream.give_back(event.engine) if self.stream and is_news else ()
        if not kept:
            return []
        router.reopen(Closing.LENT, kept)
        return router.launch_waiting()

    def follow_fleet(self, event: EngineJoined | EngineLost | EngineRetired) -> None:
        """Take down an engine that came or went."""
        for machine in (self.stream, self.escalation):
            if machine and isinstance(event, EngineJoined):
                machine.join(event.engine, event.gpus)
            elif machine:
                machine.leave(event.engine)
        if self.evaluation:
            self.evaluation.lose(event.engine)

    def count_finish(self, num_tokens: int) -> tuple[MeasureProgress, ...]:
        """Count a response of training that finished; one measurement is ordered, whoever needs it."""
        if self.balance:
            self.balance.count_finish(num_tokens)
        orders = self.stream.count_finish(num_tokens) if self.stream else ()
        return (self.escalation.count_finish(num_tokens) if self.escalation else ()) or orders

    @property
    def retires_engines(self) -> bool:
        """True while all engines of this allocation give back what they had, to be changed."""
        return self.escalation is not None and self.escalation.is_emptying

    @property
    def closing(self) -> Closing | None:
        """Why an engine that joins now gets no launch yet: it is changed with the others, or waits for them."""
        if not self.escalation or not self.escalation.is_under_way:
            return None
        return Closing.RETIRING if self.escalation.is_emptying else Closing.ARRIVING

    @property
    def have_engines_to_come(self) -> bool:
        """True while engines are to come back from the trainer, or to take the place of those of now."""
        is_changing = self.escalation is not None and self.escalation.is_under_way
        return is_changing or (self.seeding is not None and self.seeding.are_lent)

    @property
    def awaits_empty_engines(self) -> bool:
        """True while engines are waited for that give back what they had, to be lent or changed."""
        return bool(self.stream and self.stream.lending) or self.retires_engines

    def use_empty_engines(self, router: Router, engines: Sequence[EngineId]) -> tuple[Command, ...]:
        """Let groups stream on lent engines, or change all engines of this allocation, once they are empty."""
        lending = self.stream.lending if self.stream else ()
        if self.stream and lending and router.are_empty(lending):
            is_filled = self.evaluation is not None and not self.evaluation.are_empty(lending)
            return () if is_filled else (self.stream.stream(), *(self.escalation.ask() if self.escalation else ()))
        if self.escalation and self.retires_engines and router.are_empty(engines):
            order = self.escalation.switch()
            lengths = (self.drafts.change_degree(order.tensor_parallel, engines),) if self.drafts else ()
            return *lengths, order
        return ()

    def end_switch(self, event: EnginesSwitched, now: float) -> None:
        """Note that the engines are changed that finish the round.

        Raises:
            ImpossibleEvent: It was not ordered.
        """
        if not self.escalation:
            raise ImpossibleEvent(f"Engines were changed in round {event.round}, which was not ordered.")
        self.escalation.end(event, now)

    def open_attempt(self) -> None:
        """An attempt of the run begins, with engines of the planner's degree."""
        if self.escalation and self.planner:
            self.escalation.open(self.planner.in_use)

    def measure(self, event: RoundMeasured, next_kind: RoundKind) -> tuple[Command, ...]:
        """Learn what a round cost; gives the change of engines that pays for the next one."""
        orders: tuple[Command, ...] = ()
        if self.planner:
            was_filled = self.evaluation is not None and self.evaluation.has_filled(event.round)
            is_in_time = self.planner.awaits(event)
            orders = self.planner.measure(event, next_kind, was_filled=was_filled)
            if self.escalation and is_in_time:
                self.escalation.note_switch(event.switch_time_s)
                orders = self.escalation.follow(self.planner.in_use)
        if self.drafts:
            self.drafts.end_measurement(event)
        return orders

    def learn_drafts(self, event: DraftsMeasured) -> None:
        """Take in what an engine's decode passes gained.

        Raises:
            ImpossibleEvent: It was not ordered.
        """
        if not self.drafts:
            raise ImpossibleEvent(f"Drafts of {event.engine} were measured, which was not ordered.")
        self.drafts.learn(event)

    def take_progress(
        self, event: ProgressMeasured, engines: Sequence[EngineId], router: Router, now: float
    ) -> tuple[Command, ...]:
        """Lend engines of this allocation, or change all of them, if the measurement says that it pays.

        Raises:
            ImpossibleEvent: The measurement was not ordered, or cannot have been made.
        """
        if not any(machine and machine.has_ordered(event) for machine in (self.stream, self.escalation)):
            raise ImpossibleEvent(f"The progress of round {event.round} was measured, which was not ordered.")
        validate_progress(event)
        if router.is_changing:
            return ()
        acting = self.environments.acting_tokens if self.environments else ()
        lent = self.stream.choose(event, engines, router.holders, acting) if self.stream else ()
        if self.escalation and self.stream and self.stream.lending:
            self.escalation.postpone(event)
        if lent:
            return LendEngines(round=event.round, engines=lent), *router.close(lent, Closing.LENT)
        if not self.escalation:
            return ()
        is_local = set(engines)
        usable = [engine for engine in router.open_engines if engine in is_local]
        orders = self.escalation.choose(event, usable, router.holders, now)
        return *orders, *(router.close(engines, Closing.RETIRING) if orders else ())

    def validate_reward(self, event: RewardComputed) -> None:
        """Refuse a reward that cannot be one; raises `ImpossibleEvent`."""
        if self.budget and not is_held_out(event.request):
            self.budget.validate(event)

    def learn_reward(self, event: RewardComputed) -> None:
        """Learn how long test cases take, from a reward that was validated."""
        if self.budget and not is_held_out(event.request):
            self.budget.learn(event)

    def with_limits(self, order: ScoreResponse) -> ScoreResponse:
        """Add the limits of a prompt's test cases, of which something is known."""
        if not self.budget or is_held_out(order.request):
            return order
        return ScoreResponse(request=order.request, case_limits_s=self.budget.limits(order.request.prompt.key))

    # Trajectories of several turns; without environments every request is the router's

    def start(self, requests: Sequence[RequestId]) -> Sequence[RequestId]:
        """Let requests begin; gives those that go to an engine at once."""
        if not self.environments:
            return requests
        self.environments.start(requests)
        return ()

    def stop(self, requests: Sequence[RequestId], note: Note) -> Sequence[RequestId]:
        """Let requests end; gives those that the router has. Arguments as of `Environments.stop`."""
        return self.environments.stop(requests, note) if self.environments else requests

    def take_turn(self, event: EnvironmentEvent, now: float, router: Router, conclude: Conclude) -> tuple[Command, ...]:
        """Take in a fact of a trajectory; arguments and errors as of `Environments.handle`."""
        if not self.environments:
            raise ImpossibleEvent(f"{event} came in a run without environments.")
        return self.environments.handle(event, now, router, conclude)

    def fire(self, event: TimerFired, now: float, conclude: Conclude) -> tuple[Command, ...]:
        """A timer fired: end what it is about."""
        cuts: tuple[Command, ...] = self.evaluation.fire(event) if self.evaluation else ()
        return cuts + (self.environments.fire(event, now, conclude) if self.environments else ())

    def generating(self, running: Sequence[RequestId]) -> Sequence[RequestId]:
        """Of what batching and evaluation wait for, what the router has; raises `InvariantViolated` as `check` does."""
        if not self.environments:
            return running
        self.environments.check(running)
        return [request for request in running if self.environments.is_generating(request)]

    def check(self, engines: Sequence[EngineId]) -> None:
        """Re-derive their invariants.

        Raises:
            InvariantViolated: One contradicts itself, or the fleet.
        """
        for machine in (self.budget, self.planner, self.drafts, self.evaluation, self.seeding, self.balance):
            if machine:
                machine.check()
        for of_fleet in (self.stream, self.escalation):
            if of_fleet:
                of_fleet.check(engines)

    def snapshot(self) -> dict[str, Any]:
        """Give their states as JSON data, by name."""
        return {
            "reward_budget": self.budget and self.budget.snapshot(),
            "parallelism": self.planner and self.planner.snapshot(),
            **({"tail_escalation": self.escalation.snapshot()} if self.escalation else {}),
            "speculative_decoding": self.drafts and self.drafts.snapshot(),
            "stream": self.stream and self.stream.snapshot(),
            "evaluation": self.evaluation and self.evaluation.snapshot(),
            **({"seeding": self.seeding.snapshot()} if self.seeding else {}),
            **({"balance": self.balance.snapshot()} if self.balance else {}),
            **({"environments": self.environments.snapshot()} if self.environments else {}),
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: Mapping[str, Any]) -> Self:
        """Rebuild those that the settings ask for; one that the snapshot does not know is new."""

        def restored(machine: Any, name: str, part: Any) -> Any:
            if not part:
                return None
            state = snapshot.get(name)
            return machine.restore(part, state) if state else machine(part)

        balance = settings.elastic and settings.elastic.balance
        planning = settings.parallelism
        escalating = planning if planning and planning.escalation else None
        return cls(
            budget=restored(RewardBudget, "reward_budget", settings.reward_budget),
            planner=restored(ParallelismPlanner, "parallelism", planning),
            escalation=restored(TailEscalation, "tail_escalation", escalating),
            drafts=restored(SpeculativeDecoding, "speculative_decoding", settings.speculative_decoding),
            stream=restored(StreamScaling, "stream", settings.stream),
            evaluation=restored(Evaluation, "evaluation", settings.evaluation),
            seeding=restored(Seeding, "seeding", settings.elastic and settings.stream and settings.elastic.seeding),
            balance=restored(Balance, "balance", balance if balance and balance.max_moves else None),
            environments=restored(Environments, "environments", settings.environment),
            replaces_dropped=settings.dynamic_sampling is not None,
            start_interval_s=settings.environment.start_interval_s if settings.environment else 0.0,
        )
