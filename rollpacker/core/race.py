"""What all synchronous batching machines share: a round in which prompts race for places.

A round has places per domain, and its prompts race for them. A prompt takes its place with its first R0 rewards or,
without `overlap_rewards`, with its first R0 responses; when all places are taken, exactly the samples that took them
are scored. When the last place of a domain is taken, those of it that still race are deferred to the long queue. The
round ends when no place is open and the rewards of all placed groups are known.

A machine adds where the prompts of a round come from and how many race for how many places: `_prepare_round` and
`next_kind`. One whose rounds grow says what fills a vacancy, `_fill`, and one with a filter what becomes of a group
that has its rewards, `_decide`.

Invariant: a prompt is in exactly one place at any time: at the supply, queued, or in the round. So it is trained, or
dropped, exactly once per epoch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, assert_never

from rollpacker.core.batching_machine import BatchingEvent, Decision, GivenUp, StartRequests, StopRequests
from rollpacker.core.commands import BeginRound, DropPrompt, EndRound, EndRun, FailRun, RoundKind, ScoreResponse
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, RequestId
from rollpacker.core.quotas import scale_up
from rollpacker.core.round import Group, Outcome, RoundLedger
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import DrawnPrompt, PromptSupply


class Race(ABC):
    """Implements `rollpacker.core.batching_machine.BatchingMachine`, but for what a round is made of."""

    _GROWS: ClassVar[bool] = False
    """Whether prompts may be drawn, and join, while a round is open."""

    def __init__(self, settings: SchedulerSettings) -> None:
        self._settings = settings
        self._supply = PromptSupply(dict(settings.domain_weights))
        self._ledger = RoundLedger(grows=self._GROWS)
        self._long_queue: list[DrawnPrompt] = []
        """Deferred prompts of all domains, first in, first out."""
        self._is_preparing = False
        """True from StepStarted until the round is open."""
        self._is_scoring = False
        """Without `overlap_rewards`, True while the placed groups are scored."""
        self._is_room_scarce = False
        """Whether prompts may wait for others' responses to end before they are launched."""

    def handle(self, event: BatchingEvent) -> tuple[Decision, ...]:  # noqa: PLR0911 one case per fact
        match event:
            case ResponseFinished():
                return self._count_finish(event)
            case RewardComputed():
                return self._count_reward(event)
            case GivenUp():
                return self._give_up(event)
            case TurnFinished():
                self._ledger.running_group(event)
                return ()
            case (
                ResponseAborted() | ResponseEvicted() | EnvironmentBegan() | EnvironmentStepped() | EnvironmentFailed()
            ):
                self._ledger.launched_group(event.request)
                return ()
            case StepStarted():
                self._ledger.expect(event, is_drawing=self._is_preparing)
                self._is_preparing = True
                return self._prepare()
            case PromptsDrawn():
                queued = {drawn.prompt for drawn in self._long_queue}
                self._supply.receive(event, self._ledger.groups, queued)
                if self._is_preparing:
                    return self._prepare()
                return tuple(self._go_on()) if self._ledger.is_open else ()
            case _:
                assert_never(event)

    # A round begins

    def _prepare(self) -> tuple[Decision, ...]:
        decisions = () if self._supply.is_waiting else self._prepare_round()
        self._is_preparing = self._supply.is_waiting and not self._ledger.is_open
        return decisions

    @abstractmethod
    def _prepare_round(self) -> tuple[Decision, ...]:
        """Begin a round, or ask for the prompts that it lacks, or end the run; no draw is under way."""

    @abstractmethod
    def next_kind(self) -> RoundKind: ...

    def _open(self, kind: RoundKind, places: Mapping[Domain, int], *, num_prompts: int) -> BeginRound:
        """Open a round in which so many prompts are to race for these places."""
        return self._ledger.open(
            kind,
            places,
            num_prompts=num_prompts,
            num_launched=self._num_samples(kind),
            num_needed=self._settings.num_responses,
        )

    def _begin(
        self, kind: RoundKind, prompts: Sequence[DrawnPrompt], places: Mapping[Domain, int] | None = None
    ) -> tuple[BeginRound, StartRequests]:
        """Open a round with all its prompts; None is a place for each."""
        places = Counter(drawn.domain for drawn in prompts) if places is None else places
        opening = self._open(kind, places, num_prompts=len(prompts))
        return opening, self._ledger.add(prompts, num_launched=self._num_samples(kind))

    def _num_samples(self, kind: RoundKind) -> int:
        """Responses per prompt."""
        num_responses = self._settings.num_responses
        return scale_up(num_responses, self._settings.eta_responses) if kind is RoundKind.SHORT else num_responses

    # A round goes on

    def _count_finish(self, event: ResponseFinished) -> tuple[Decision, ...]:
        """Have the response scored, or, without overlap, count it in the race."""
        ledger = self._ledger
        if not ledger.finish(event):
            return ()
        if self._settings.overlap_rewards:
            scoring = ScoreResponse(request=event.request)
            return (scoring, *self._go_on()) if self._is_room_scarce else (scoring,)
        group = ledger.groups[event.request.prompt]
        decisions = self._give_place(group) if group.num_finished == ledger.num_responses else []
        return *decisions, *self._go_on()

    def _count_reward(self, event: RewardComputed) -> tuple[Decision, ...]:
        """Decide about the group that this reward completes."""
        ledger = self._ledger
        may_be_scored = self._settings.overlap_rewards or self._is_scoring
        if not may_be_scored and ledger.is_unscored(event.request):
            raise ImpossibleEvent(
                f"{event.request} was scored while places of round {ledger.round} are open.",
                "Without overlap_rewards a batch is scored when all its places are taken.",
            )
        group = ledger.score(event)
        if group is None or group.num_scored < ledger.num_responses:
            return ()
        decisions = self._decide(group)
        self._is_scoring = self._is_scoring and bool(ledger.num_placed)
        return *decisions, *self._go_on()

    def _decide(self, group: Group) -> list[Decision]:
        """Take a group that has its rewards into the batch."""
        stopping = self._give_place(group) if group.outcome is Outcome.RACING else []
        return [self._ledger.accept(group), *stopping]

    def _give_place(self, group: Group) -> list[Decision]:
        """Give a group its place, defer the losers, and stop what still runs of both."""
        ledger = self._ledger
        stopped = ledger.place(group)
        if not ledger.places[group.domain]:
            losers, of_losers = ledger.defer_losers(group.domain)
            stopped += of_losers
            self._long_queue += losers
        return [StopRequests(requests=tuple(stopped))] if stopped else []

    def _give_up(self, event: GivenUp) -> tuple[Decision, ...]:
        """Count a sample out; a prompt whose group can never be complete is dropped, and its place with it.

        Where rounds grow, another prompt fills the place.
        """
        ledger = self._ledger
        group = ledger.give_up(event.request)
        if group is None:
            return ()
        if group.num_left >= ledger.num_responses:
            return tuple(self._go_on()) if self._is_room_scarce else ()
        decisions: list[Decision] = [DropPrompt(round=ledger.round, prompt=group.prompt)]
        stopped = ledger.drop(group)
        if stopped:
            decisions.append(StopRequests(requests=tuple(stopped)))
        if self._GROWS:
            return *decisions, *self._go_on()
        ledger.close_places(group.domain)
        num_launched = len(ledger.groups)
        if any(each.outcome is not Outcome.DROPPED for each in ledger.groups.values()):
            return *decisions, *self._go_on()
        ledger.cancel()
        failing = FailRun(
            round=ledger.round,
            num_prompts_launched=num_launched,
            num_prompts_dropped=num_launched,
            num_prompts_needed=num_launched,
        )
        return *decisions, failing

    def _go_on(self) -> list[Decision]:
        """Fill what is vacant, and order what follows when nothing is."""
        ledger = self._ledger
        if self._is_scoring:
            return []
        decisions = self._fill()
        if not self._settings.overlap_rewards and ledger.num_placed and ledger.is_full:
            self._is_scoring = True
            decisions += [ScoreResponse(request=request) for request in ledger.finished_requests()]
        if ledger.is_complete:
            decisions.append(self._end_round())
        return decisions

    def _fill(self) -> list[Decision]:
        """Launch, ask for or close what is vacant; nothing where a round has all its prompts from the start."""
        return []

    def _end_round(self) -> EndRound | EndRun:
        """End the round, and the run when it has nothing to train: nothing is left then."""
        ledger = self._ledger
        if not any(group.outcome is Outcome.ACCEPTED for group in ledger.groups.values()):
            ledger.cancel()
            return EndRun()
        return EndRound(
            round=ledger.round,
            step=ledger.step,
            prompts=ledger.close(),
            long_queue_length=len(self._long_queue),
        )

    # Views, self-check and snapshot

    def running_requests(self) -> list[RequestId]:
        return list(self._ledger.running_requests())

    def check(self) -> None:
        ledger = self._ledger
        self._supply.check()
        ledger.check()
        self._check_queue()
        if self._is_preparing and ledger.is_open:
            raise InvariantViolated(f"A round is prepared while round {ledger.round} is open.")
        if not self._GROWS and ledger.is_open and (self._supply.is_waiting or self._supply.num_drawn()):
            raise InvariantViolated(f"Prompts are drawn while round {ledger.round} is open.")

    def _check_queue(self) -> None:
        """Raise if a prompt waits twice, or one of this round waits and is not deferred, or the reverse."""
        queued = [drawn.prompt for drawn in self._long_queue]
        if len(queued) != len(set(queued)):
            raise InvariantViolated(f"A prompt waits twice in the long queue: {queued}")
        for group in self._ledger.groups.values():
            if (group.outcome is Outcome.DEFERRED) != (group.prompt in queued):
                raise InvariantViolated(f"{group.prompt} is {group.outcome.value}; the long queue holds {queued}")

    def snapshot(self) -> dict[str, Any]:
        return {
            "supply": self._supply.snapshot(),
            "ledger": self._ledger.snapshot(),
            "long_queue": [drawn.as_list() for drawn in self._long_queue],
            "is_preparing": self._is_preparing,
            "is_scoring": self._is_scoring,
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        machine = cls(settings)
        machine._load(snapshot)
        return machine

    def _load(self, snapshot: dict[str, Any]) -> None:
        """Take over the state of the machine that gave the snapshot."""
        self._supply = PromptSupply.restore(dict(self._settings.domain_weights), snapshot["supply"])
        self._ledger = RoundLedger.restore(snapshot["ledger"], grows=self._GROWS)
        self._long_queue = [DrawnPrompt.from_list(plain) for plain in snapshot["long_queue"]]
        self._is_preparing = snapshot["is_preparing"]
        self._is_scoring = snapshot["is_scoring"]
