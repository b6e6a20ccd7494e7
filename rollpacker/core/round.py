"""The ledger of one rollout round: which samples run, finished and were scored, and what became of each prompt.

It keeps the books and checks facts; it makes no policy. Every machine of `core.race` uses it, and `core.async_batching`
its `Group` alone. A round goes

    closed ──expect(StepStarted)──> closed, step known ──open──> open ──close──> closed

and within an open round

    sample:  running ──finish──> finished ──score──> scored
             running ──give_up──> given up                     (it will never finish)
    group:   racing ──place──> placed ──accept──> accepted      (its `num_responses` scored samples are the group)
                    ──defer──> deferred                         (it will run again, from scratch)
             racing or placed ──drop──> dropped                 (its rewards are all equal, or too few samples are left
                                                                that will finish: it never runs again)

A group that is no longer racing has no running sample: what still ran is stopped, and keeps its status.
Where places are taken by rewards, a group is placed and accepted at once; where they are taken by responses, it stays
placed until its rewards are in. A group that is accepted, deferred or dropped is decided: its samples change no more.

Every fact about a request is one of three:

* news: it moves a running or finished sample of an undecided group one state on;
* late: of an older round, of a decided group, a finish of a placed one, or told before; it changes nothing, because an
  abort may lose the race with the last token and a message may come twice;
* impossible: of a round to come, of a prompt or sample never launched, a finish by a policy version that the round does
  not take, a reward before its finish. It raises `ImpossibleEvent` and changes nothing.

Rounds and steps are counted apart: a step whose round got no batch has another one. A round that grows may take in
prompts while it is open, and may have places that no prompt races for yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, Self

from rollpacker.core.batching_machine import StartRequests
from rollpacker.core.commands import AcceptGroup, BeginRound, RoundKind
from rollpacker.core.environment_events import TurnFinished
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import ResponseFinished, RewardComputed, StepStarted
from rollpacker.core.ids import Domain, PromptId, RequestId, sampled
from rollpacker.core.supply import DrawnPrompt

RUNNING: Final = ord("r")
FINISHED: Final = ord("f")
SCORED: Final = ord("s")
GIVEN_UP: Final = ord("x")


class Outcome(StrEnum):
    """What became of a prompt in its round."""

    RACING = "racing"
    PLACED = "placed"
    ACCEPTED = "accepted"
    DEFERRED = "deferred"
    DROPPED = "dropped"


_UNDECIDED: Final = (Outcome.RACING, Outcome.PLACED)
_SCORED_OUT: Final = (Outcome.ACCEPTED, Outcome.DROPPED)
"""Of groups that have all their rewards."""


class Group:
    """One prompt's samples."""

    __slots__ = ("domain", "has_variance", "outcome", "prompt", "reward", "samples")

    def __init__(self, drawn: DrawnPrompt, samples: bytearray) -> None:
        self.prompt, self.domain = drawn
        self.samples = samples
        """One status byte per sample: RUNNING, FINISHED, SCORED or GIVEN_UP. `rrsf` reads well in a snapshot and counts
        in C."""
        self.outcome = Outcome.RACING
        self.reward: float | None = None
        """The first one that came."""
        self.has_variance = False
        """True once another reward came than the first one."""

    @property
    def is_undecided(self) -> bool:
        return self.outcome in _UNDECIDED

    @property
    def num_scored(self) -> int:
        return self.samples.count(SCORED)

    @property
    def num_finished(self) -> int:
        """Scored ones too."""
        return len(self.samples) - self.samples.count(RUNNING) - self.samples.count(GIVEN_UP)

    @property
    def num_left(self) -> int:
        """Those that were not given up."""
        return len(self.samples) - self.samples.count(GIVEN_UP)

    def score(self, sample: int, reward: float) -> None:
        """Take in the reward of a sample that has finished."""
        self.samples[sample] = SCORED
        if self.reward is None:
            self.reward = reward
        elif reward != self.reward:
            self.has_variance = True

    def with_state(self, state: int) -> list[int]:
        """List the samples in one state, ascending."""
        return [index for index, each in enumerate(self.samples) if each == state]

    def snapshot(self) -> dict[str, Any]:
        return {
            "prompt": list(self.prompt),
            "domain": self.domain,
            "outcome": self.outcome.value,
            "samples": self.samples.decode(),
            "reward": self.reward,
            "has_variance": self.has_variance,
        }

    @classmethod
    def restore(cls, row: Mapping[str, Any], **own: Any) -> Self:
        """Rebuild the group that gave the row; `own` is what a derived class is made of besides."""
        drawn = DrawnPrompt(PromptId(*row["prompt"]), Domain(row["domain"]))
        group = cls(drawn, bytearray(row["samples"].encode()), **own)
        group.outcome = Outcome(row["outcome"])
        group.reward, group.has_variance = row["reward"], row["has_variance"]
        return group


class RoundLedger:
    """The books of the open round, and between rounds the number of the last one."""

    def __init__(self, *, grows: bool = False) -> None:
        self._grows = grows
        self.round = -1
        """The open round, or the last one."""
        self.step = -1
        """That the round is for."""
        self._is_cancelled = False
        """True when the last round got no batch, so that its step is still the next one."""
        self.policy_version = -1
        """What every engine holds in the round."""
        self.num_responses = 0
        """Scored samples that complete a group."""
        self.groups: dict[PromptId, Group] = {}
        """In launch order; empty between rounds."""
        self.places: Counter[Domain] = Counter()
        """Per domain, how many more groups the batch takes; empty between rounds."""
        self.num_running = 0
        """Running samples of racing groups."""
        self.num_racing: Counter[Domain] = Counter()
        """Groups that race for a place, per domain."""
        self.num_placed = 0
        """Groups that have a place and wait for rewards."""

    @property
    def is_open(self) -> bool:
        return bool(self.places)

    @property
    def is_full(self) -> bool:
        """True when every place of the batch is taken."""
        return not any(self.places.values())

    @property
    def is_complete(self) -> bool:
        """True when the batch has all its groups, with their rewards."""
        return not self.num_placed and self.is_full

    @property
    def next_step(self) -> int:
        """The step that the next round is for."""
        return self.step if self._is_cancelled else self.step + 1

    # Opening and closing

    def expect(self, event: StepStarted, *, is_drawing: bool) -> None:
        """Note the step that the next round is for.

        Raises:
            ImpossibleEvent: The step is not the next one, or the last one still draws or runs.
        """
        if is_drawing or self.is_open:
            raise ImpossibleEvent(
                f"Step {event.step} started while step {self.next_step if is_drawing else self.step} is under way.",
                "A step starts after the EndRound of the one before.",
            )
        if event.step != self.next_step:
            raise ImpossibleEvent(
                f"Step {event.step} started after step {self.step}.", f"The next step is {self.next_step}."
            )
        self.policy_version = event.policy_version

    def open(
        self, kind: RoundKind, places: Mapping[Domain, int], *, num_prompts: int, num_launched: int, num_needed: int
    ) -> BeginRound:
        """Open the next round, nothing launched yet.

        Args:
            kind: How the round is recorded.
            places: Groups that the batch takes, per domain.
            num_prompts: As many as are to be launched.
            num_launched: Samples per prompt.
            num_needed: Scored samples that complete a group.
        """
        self.step, self.round = self.next_step, self.round + 1
        self._is_cancelled = False
        self.num_responses = num_needed
        self.places = Counter(places)
        return BeginRound(
            round=self.round,
            step=self.step,
            kind=kind,
            num_prompts_launched=num_prompts,
            num_prompts_needed=sum(places.values()),
            num_responses_launched=num_launched,
            num_responses_needed=num_needed,
        )

    def add(self, prompts: Sequence[DrawnPrompt], *, num_launched: int) -> StartRequests:
        """Let prompts race in the open round, so many samples each, in launch order."""
        for drawn in prompts:
            self.groups[drawn.prompt] = Group(drawn, bytearray([RUNNING]) * num_launched)
            self.num_racing[drawn.domain] += 1
        self.num_running += len(prompts) * num_launched
        return StartRequests(
            requests=tuple(
                RequestId(self.round, drawn.prompt, sample) for drawn in prompts for sample in range(num_launched)
            )
        )

    def cancel(self) -> None:
        """Close a round that got no batch, when nothing is left to run; its step may come again when there is."""
        self.close()
        self._is_cancelled = True

    def close(self) -> tuple[PromptId, ...]:
        """End the round and give the accepted prompts in launch order."""
        accepted = tuple(group.prompt for group in self.groups.values() if group.outcome is Outcome.ACCEPTED)
        self.groups = {}
        self.places = Counter()
        return accepted

    # Facts

    def finish(self, event: ResponseFinished) -> bool:
        """Record a finish; False if it comes late.

        Raises:
            ImpossibleEvent: The request was never made, or another policy version answered it.
        """
        group = self.running_group(event)
        if group is None:
            return False
        group.samples[event.request.sample] = FINISHED
        self.num_running -= 1
        return True

    def running_group(self, event: ResponseFinished | TurnFinished) -> Group | None:
        """Look up the group of a running sample that an engine has generated; None if that comes late.

        Raises:
            ImpossibleEvent: The request was never made, or another policy version answered it.
        """
        request = event.request
        group = self.launched_group(request)
        if group is None or group.outcome is not Outcome.RACING or group.samples[request.sample] != RUNNING:
            return None
        versions = [span.policy_version for span in sampled(event.spans)]
        if set(versions) != {self.policy_version}:
            raise ImpossibleEvent(
                f"{request} was generated by the policy versions {versions}.",
                f"Round {self.round} takes tokens of version {self.policy_version}.",
            )
        return group

    def give_up(self, request: RequestId) -> Group | None:
        """Note that a running sample will never finish, and give its group; None if it comes late."""
        group = self.launched_group(request)
        if group is None or group.outcome is not Outcome.RACING or group.samples[request.sample] != RUNNING:
            return None
        group.samples[request.sample] = GIVEN_UP
        self.num_running -= 1
        return group

    def score(self, event: RewardComputed) -> Group | None:
        """Record a reward and give its group; None if it comes late.

        Raises:
            ImpossibleEvent: The request was never made, or has not finished.
        """
        request = event.request
        group = self.launched_group(request)
        if group is None:
            return None
        if group.samples[request.sample] in (RUNNING, GIVEN_UP):
            raise ImpossibleEvent(f"{request} was scored before it finished.", "A response is scored once, after it.")
        if not group.is_undecided or group.samples[request.sample] == SCORED:
            return None
        group.score(request.sample, event.reward)
        return group

    def launched_group(self, request: RequestId) -> Group | None:
        """Look up the group of a request; None if its round is over.

        Raises:
            ImpossibleEvent: The request was never made.
        """
        if request.round > self.round:
            raise ImpossibleEvent(f"{request} belongs to a round to come.", f"The last round is {self.round}.")
        if request.round < self.round or not self.is_open:
            return None
        group = self.groups.get(request.prompt)
        if group is None or not 0 <= request.sample < len(group.samples):
            raise ImpossibleEvent(f"{request} was never launched.", f"Round {self.round} launched others.")
        return group

    def is_unscored(self, request: RequestId) -> bool:
        """Tell whether a request of the open round has no reward yet; it was made, or this raises as above."""
        group = self.launched_group(request)
        return group is not None and group.samples[request.sample] != SCORED

    # Decisions

    def place(self, group: Group) -> list[RequestId]:
        """Give a racing group its place; gives its requests that still run."""
        self.places[group.domain] -= 1
        self.num_placed += 1
        return self._end_race(group, Outcome.PLACED)

    def accept(self, group: Group) -> AcceptGroup:
        """Take a placed group, with its rewards, into the batch."""
        self.num_placed -= 1
        group.outcome = Outcome.ACCEPTED
        return AcceptGroup(round=self.round, prompt=group.prompt, samples=tuple(group.with_state(SCORED)))

    def drop(self, group: Group) -> list[RequestId]:
        """Take a group out of the round whose rewards are all equal; gives its requests that still run.

        A place that it had is open again.
        """
        if group.outcome is Outcome.PLACED:
            self.num_placed -= 1
            self.places[group.domain] += 1
        return self._end_race(group, Outcome.DROPPED)

    def close_places(self, domain: Domain) -> None:
        """Give up the places that no prompt races for: the batch is smaller."""
        self.places[domain] = min(self.places[domain], self.num_racing[domain])

    def defer_losers(self, domain: Domain) -> tuple[list[DrawnPrompt], list[RequestId]]:
        """Take those of a domain that still race out of the race, in launch order; gives their running requests too."""
        losers = [racing for racing in self.racing_groups() if racing.domain == domain]
        stopped = [request for loser in losers for request in self._end_race(loser, Outcome.DEFERRED)]
        return [DrawnPrompt(loser.prompt, loser.domain) for loser in losers], stopped

    def _end_race(self, group: Group, outcome: Outcome) -> list[RequestId]:
        if group.outcome is Outcome.RACING:
            self.num_racing[group.domain] -= 1
        group.outcome = outcome
        running = [RequestId(self.round, group.prompt, sample) for sample in group.with_state(RUNNING)]
        self.num_running -= len(running)
        return running

    # Views

    def racing_groups(self) -> Iterator[Group]:
        """In launch order."""
        return (group for group in self.groups.values() if group.outcome is Outcome.RACING)

    def running_requests(self) -> Iterator[RequestId]:
        """What is still needed from the engines, in launch order."""
        return self._requests(RUNNING, (Outcome.RACING,))

    def finished_requests(self) -> Iterator[RequestId]:
        """What waits for its reward and may be in the batch, in launch order."""
        return self._requests(FINISHED, _UNDECIDED)

    def _requests(self, state: int, outcomes: Collection[Outcome]) -> Iterator[RequestId]:
        return (
            RequestId(self.round, group.prompt, sample)
            for group in self.groups.values()
            if group.outcome in outcomes
            for sample in group.with_state(state)
        )

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the ledger's invariants.

        Raises:
            InvariantViolated: A counter is off, or the round can never end.
        """
        for group in self.groups.values():
            was_given_up = group.outcome is Outcome.DROPPED and group.num_left < self.num_responses
            is_scored_out = group.outcome in _SCORED_OUT and not was_given_up
            if group.num_scored > self.num_responses or (group.num_scored == self.num_responses) != is_scored_out:
                raise InvariantViolated(
                    f"{group.prompt} is {group.outcome.value} with {group.num_scored} scored samples."
                )
            if group.num_left < self.num_responses and not was_given_up:
                raise InvariantViolated(f"{group.prompt} runs {group.num_left} samples of {self.num_responses}.")
            if group.outcome is Outcome.PLACED and group.num_finished != self.num_responses:
                raise InvariantViolated(f"{group.prompt} has a place with {group.num_finished} finished samples.")
        if self.num_running != sum(1 for _ in self.running_requests()):
            raise InvariantViolated(f"num_running is {self.num_running}.")
        if self.num_placed != sum(group.outcome is Outcome.PLACED for group in self.groups.values()):
            raise InvariantViolated(f"num_placed is {self.num_placed}.")
        if self.is_open and self.is_complete:
            raise InvariantViolated(f"Round {self.round} is open although its batch is complete.")
        racing = Counter(group.domain for group in self.racing_groups())
        for domain in self.places.keys() | self.num_racing.keys() | racing.keys():
            places, num_racing = self.places[domain], self.num_racing[domain]
            are_too_many = places > num_racing and not self._grows
            if num_racing != racing[domain] or places < 0 or are_too_many or (num_racing and not places):
                raise InvariantViolated(f"{num_racing} prompts of {domain!r} race for {places} places.")

    def snapshot(self) -> dict[str, Any]:
        return {
            "round": self.round,
            "step": self.step,
            "is_cancelled": self._is_cancelled,
            "policy_version": self.policy_version,
            "num_responses": self.num_responses,
            "groups": [group.snapshot() for group in self.groups.values()],
            "places": dict(self.places),
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any], *, grows: bool = False) -> Self:
        ledger = cls(grows=grows)
        ledger.round = snapshot["round"]
        ledger.step = snapshot["step"]
        ledger._is_cancelled = snapshot["is_cancelled"]
        ledger.policy_version = snapshot["policy_version"]
        ledger.num_responses = snapshot["num_responses"]
        ledger.groups = {group.prompt: group for group in map(Group.restore, snapshot["groups"])}
        ledger.places = Counter({Domain(domain): places for domain, places in snapshot["places"].items()})
        ledger.num_running = sum(1 for _ in ledger.running_requests())
        ledger.num_racing = Counter(group.domain for group in ledger.racing_groups())
        ledger.num_placed = sum(group.outcome is Outcome.PLACED for group in ledger.groups.values())
        return ledger
