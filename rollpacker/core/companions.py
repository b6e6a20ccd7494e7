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
    MeasureProgress,
    RoundKind,
    ScoreResponse,
    StreamGroups,
)
from rollpacker.core.environments import Conclude, EnvironmentEvent, Environments
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.evaluation import Evaluation
from rollpacker.core.events import (
    DraftsMeasured,
    EngineJoined,
    EngineLost,
    EngineRetired,
    ProgressMeasured,
    RewardComputed,
    RoundMeasured,
    TimerFired,
)
from rollpacker.core.ids import EngineId, RequestId, is_held_out
from rollpacker.core.parallelism import ParallelismPlanner
from rollpacker.core.reward_budget import RewardBudget
from rollpacker.core.routing import Router
from rollpacker.core.seeding import Seeding
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.speculative_decoding import SpeculativeDecoding
from rollpacker.core.stream_scaling import StreamScaling


@dataclass(slots=True, kw_only=True)
class Companions:
    """Those that the settings ask for; None is one that they leave out."""

    budget: RewardBudget | None
    planner: ParallelismPlanner | None
    drafts: SpeculativeDecoding | None
    stream: StreamScaling | None
    evaluation: Evaluation | None
    seeding: Seeding | None
    """Only with a stream trainer that engines can be lent to."""
    balance: Balance | None
    """Only in a run with rollout workers."""
    environments: Environments | None

    @classmethod
    def of(cls, settings: SchedulerSettings) -> Self:
        """Make them for a run that begins."""
        return cls.restore(settings, {})

    @property
    def tensor_parallel(self) -> int | None:
        """The degree that the engines have, or are to change to; None without a planner."""
        return self.planner.in_use if self.planner else None

    @property
    def parallelism_gain(self) -> float | None:
        """The last measured round's rate over that of the last of its kind on another degree; None if unknown."""
        return self.planner.gain if self.planner else None

    def begin_round(self, decision: BeginRound) -> tuple[Command, ...]:
        """Tell those that watch rounds."""
        for watcher in (self.seeding, self.balance):
            if watcher:
                watcher.begin_round(decision)
        if self.planner:
            self.planner.begin_round(decision)
        streams = self.stream.begin_round(decision) if self.stream else ()
        lengths = (self.drafts.begin_round(decision, self.tensor_parallel),) if self.drafts else ()
        return *lengths, *streams, *(self.evaluation.begin_round(decision) if self.evaluation else ())

    def follow_round(self, decision: EndRound | DropPrompt | EndRun) -> None:
        """Tell them how the round goes on, or that it is over."""
        for machine in (self.planner, self.drafts):
            if machine and isinstance(decision, EndRound):
                machine.end_round()
        for watcher in (self.seeding, self.balance):
            if watcher and not isinstance(decision, DropPrompt):
                watcher.end_round()
        if self.stream and isinstance(decision, DropPrompt):
            self.stream.count_drop()
        elif self.stream:
            self.stream.end_round()

    def follow_fleet(self, event: EngineJoined | EngineLost | EngineRetired) -> None:
        """Take down an engine that came or went."""
        if self.stream and isinstance(event, EngineJoined):
            self.stream.join(event.engine, event.gpus)
        elif self.stream:
            self.stream.leave(event.engine)
        if self.evaluation:
            self.evaluation.lose(event.engine)

    def count_finish(self, num_tokens: int) -> tuple[MeasureProgress, ...]:
        """Count a response of training that finished; it may be one that makes a measurement due."""
        if self.balance:
            self.balance.count_finish(num_tokens)
        return self.stream.count_finish(num_tokens) if self.stream else ()

    def begin_stream(self) -> tuple[StreamGroups, ...]:
        """Let groups stream on lent engines of which nothing is left to come."""
        if not self.stream or (self.evaluation and not self.evaluation.are_empty(self.stream.lending)):
            return ()
        return (self.stream.stream(),)

    def measure(self, event: RoundMeasured, next_kind: RoundKind) -> tuple[Command, ...]:
        """Learn what a round cost; gives the change of engines that pays for the next one."""
        orders: tuple[Command, ...] = ()
        if self.planner:
            was_filled = self.evaluation is not None and self.evaluation.has_filled(event.round)
            orders = self.planner.measure(event, next_kind, was_filled=was_filled)
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

    def choose_lent(
        self, event: ProgressMeasured, fleet: Sequence[EngineId], holders: Mapping[RequestId, EngineId | None]
    ) -> tuple[EngineId, ...]:
        """Name the engines to lend now, as `StreamScaling.choose`.

        Raises:
            ImpossibleEvent: The measurement cannot have been made.
        """
        if not self.stream:
            raise ImpossibleEvent(f"The progress of round {event.round} was measured, which was not ordered.")
        self.stream.validate(event)
        return self.stream.choose(event, fleet, holders)

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

    def stop(self, requests: Sequence[RequestId]) -> Sequence[RequestId]:
        """Let requests end; gives those that the router has."""
        return self.environments.stop(requests) if self.environments else requests

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
        if self.stream:
            self.stream.check(engines)

    def snapshot(self) -> dict[str, Any]:
        """Give their states as JSON data, by names that other versions of the program know."""
        return {
            "reward_budget": self.budget and self.budget.snapshot(),
            "parallelism": self.planner and self.planner.snapshot(),
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
        return cls(
            budget=restored(RewardBudget, "reward_budget", settings.reward_budget),
            planner=restored(ParallelismPlanner, "parallelism", settings.parallelism),
            drafts=restored(SpeculativeDecoding, "speculative_decoding", settings.speculative_decoding),
            stream=restored(StreamScaling, "stream", settings.stream),
            evaluation=restored(Evaluation, "evaluation", settings.evaluation),
            seeding=restored(Seeding, "seeding", settings.elastic and settings.stream and settings.elastic.seeding),
            balance=restored(Balance, "balance", balance if balance and balance.max_moves else None),
            environments=restored(Environments, "environments", settings.environment),
        )
