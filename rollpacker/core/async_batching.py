"""Asynchronous batching: prompts are admitted ahead of the trainer, and no trained token is older than the bound.

Engines do not stop when a batch is full: what is under way is suspended for the transfer of new weights and goes on
after it, from its tokens (`recompute`) or with the cache that it has (`keep`). Two knobs (`AsyncSettings`): the
**bound** says how many policy versions old a trained token may be, and the **lead** how many batches are admitted ahead
of the trainer, which is the mean age of a trained group (Little's law). With B prompts in a batch and a group's
**birth**, from which its age counts, the step in which it was admitted,

* admission:   by step m at most `(m + 1) * B + lead * B` groups were admitted, dropped ones not counted, and never more
  than the run's steps need;
* acceptance:  a group is complete when all its responses have rewards, and is due in step `birth + bound`. With `free`
  places in the batch of step m, a complete group is accepted if afterwards

    (H)  for every d in m .. m + bound:   |groups not accepted that are due by d|  <=  (d - m) * B + free

  and waits in the buffer otherwise. So what is due is waited for, and anything else may overtake it.

Nothing is ever discarded or aborted for its age, because nothing can be late. *Proof.* At the beginning of step m at
most (lead + 1) * B <= (bound + 1) * B groups are not accepted, and all are due by m + bound: (H) for d = m + bound. For
smaller d, (H) at the end of step m - 1, with free = 0, is (H) at m with free = B, and what is admitted at m is due at
m + bound. Accepting the group that is due first keeps (H), so while places are free some group can be accepted once
it is complete: the step ends. (H) at d = m with free = 0 says that nothing that was due is left.

With `fifo` groups are accepted in the order of their admission: the same prompts in each step, whatever the timing.

Invariant: a prompt is at the supply or live, and leaves by being accepted or, with dynamic sampling, dropped; so each
is trained or dropped once per epoch. Source: ROLL-Flash (arXiv 2510.11345); its asynchronous ratio a is bound and lead.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, Self, assert_never

from rollpacker.core.batching_machine import BatchingEvent, Decision, GivenUp, StartRequests, StopRequests
from rollpacker.core.commands import (
    AcceptGroup,
    BeginRound,
    DropPrompt,
    EndRound,
    EndRun,
    FailRun,
    RoundKind,
    ScoreResponse,
)
from rollpacker.core.environment_events import EnvironmentBegan, EnvironmentFailed, EnvironmentStepped, TurnFinished
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    PolicyUpdated,
    PromptsDrawn,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    StepStarted,
)
from rollpacker.core.ids import Domain, PromptId, RequestId, sampled
from rollpacker.core.round import FINISHED, RUNNING, SCORED, Group
from rollpacker.core.settings import SchedulerSettings
from rollpacker.core.supply import DrawnPrompt, PromptSupply

_MOST_BATCHES_LAUNCHED: Final = 4
"""Of prompts, in one step, while environments fail: then it is not a few prompts that they fail for."""


class LiveGroup(Group):
    """A prompt's samples, over as many steps as they take."""

    __slots__ = ("birth", "birth_version", "number")

    def __init__(self, drawn: DrawnPrompt, samples: bytearray, *, number: int, birth: int, birth_version: int) -> None:
        super().__init__(drawn, samples)
        self.number = number
        """Of its admission, over the run."""
        self.birth = birth
        """The step in which it was admitted; its requests carry it as their round."""
        self.birth_version = birth_version
        """The policy version that the engines held then: none of its tokens is older."""

    @property
    def is_complete(self) -> bool:
        return self.num_scored == len(self.samples)

    def requests(self, state: int) -> list[RequestId]:
        """Those in one state, ascending."""
        return [RequestId(self.birth, self.prompt, sample) for sample in self.with_state(state)]

    def snapshot(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in self.__slots__}
        return super().snapshot() | own

    @classmethod
    def restore(cls, row: Mapping[str, Any], **own: Any) -> Self:
        return super().restore(row, **own | {name: row[name] for name in cls.__slots__})


class AsyncBatching:
    """Implements `rollpacker.core.batching_machine.BatchingMachine`."""

    def __init__(self, settings: SchedulerSettings) -> None:
        assert settings.asynchronous is not None
        rules, sampling = settings.asynchronous, settings.dynamic_sampling
        self.keeps = rules.interrupt == "keep"
        """Whether engines may take new weights with requests in flight."""
        self._num_prompts, self._num_responses = settings.num_prompts, settings.num_responses
        self._bound, self._is_fifo = rules.max_staleness, rules.order == "fifo"
        self._num_ahead = math.floor(rules.lookahead * settings.num_prompts)
        self._num_in_all = rules.num_steps * settings.num_prompts
        """Groups that all steps of the run train."""
        self._filters = sampling is not None
        """Whether prompts without variance are dropped."""
        self._most_launched = math.floor(
            (sampling.max_launch_factor if sampling else _MOST_BATCHES_LAUNCHED) * settings.num_prompts
        )
        """In one step, counting its batch and what takes the place of dropped prompts."""
        self._supply = PromptSupply(dict(settings.domain_weights))
        self._step = -1
        """The last one that started."""
        self._next_step = 0
        """The step that may start: the one after `_step`, or `_step` again where it got no batch."""
        self._policy_version = -1
        """That the engines held when the step started."""
        self._newest_version = -1
        """That an engine may hold: the next one already, once it was given to engines with requests in flight."""
        self._is_preparing = False
        """True from StepStarted until the step's prompts have come."""
        self._places = 0
        """Of the step's batch that are free; 0 between two steps."""
        self._accepted: list[tuple[int, PromptId]] = []
        """Into the step's batch, with the numbers of their admission."""
        self._num_dropped = 0
        """Since the step started."""
        self._num_wanted = 0
        """So many groups may be admitted by now, over the run; dropped ones are not counted."""
        self._num_admitted = 0
        self._owed: Counter[Domain] = Counter()
        """Prompts of each domain that were dropped and have none asked for in their place."""
        self._next_number = 0
        self._live: dict[PromptId, LiveGroup] = {}
        """Admitted and neither accepted nor dropped, in the order of admission."""
        self._num_by_birth: Counter[int] = Counter()
        """How many of them were admitted in each step."""

    def handle(self, event: BatchingEvent) -> tuple[Decision, ...]:  # noqa: PLR0911 one case per fact
        match event:
            case ResponseFinished():
                return self._count_finish(event)
            case RewardComputed():
                return tuple(self._count_reward(event))
            case GivenUp():
                return tuple(self._give_up(event.request))
            case TurnFinished():
                self._running_group(event)
                return ()
            case (
                ResponseAborted() | ResponseEvicted() | EnvironmentBegan() | EnvironmentStepped() | EnvironmentFailed()
            ):
                self._group_of(event.request)
                return ()
            case StepStarted():
                return self._start_step(event)
            case PromptsDrawn():
                self._supply.receive(event, self._live)
                return tuple(self._admit())
            case _:
                assert_never(event)

    # Admission

    def _start_step(self, event: StepStarted) -> tuple[Decision, ...]:
        if self._is_preparing or self._places:
            raise ImpossibleEvent(
                f"Step {event.step} started while step {self._step} is under way.",
                "A step starts after the EndRound of the one before.",
            )
        if event.step != self._next_step:
            raise ImpossibleEvent(
                f"Step {event.step} started after step {self._step}.", f"The next step is {self._next_step}."
            )
        self._step, self._next_step, self._policy_version = event.step, event.step + 1, event.policy_version
        self._newest_version = event.policy_version
        self._is_preparing, self._accepted, self._num_dropped = True, [], 0
        by_now = (event.step + 1) * self._num_prompts + self._num_ahead
        self._num_wanted = max(self._num_admitted, min(by_now, self._num_in_all))
        return tuple(self._admit())

    def end_step(self, event: PolicyUpdated, *, keeps: bool) -> None:
        """The step was trained; if engines keep what they have, it may finish under the new policy from now on.

        Raises:
            ImpossibleEvent: The step is not the last one, or is under way.
        """
        if event.step != self._step or self._is_preparing or self._places:
            raise ImpossibleEvent(
                f"The policy was updated after step {event.step}; the last one is step {self._step}.",
                "An update comes between the EndRound of its step and the next StepStarted.",
            )
        if keeps:
            self._newest_version = event.policy_version

    def _admit(self) -> list[Decision]:
        """Ask for the prompts that lack, and launch those that have come; in a step's beginning all of them at once."""
        if self._supply.is_waiting:
            return []
        num_lacking = self._num_wanted - self._num_admitted - len(self._supply.drawn)
        draws = list(self._supply.ask_any(num_lacking, self._owed))
        self._owed.clear()
        if self._is_preparing:
            return [*draws] if draws else self._begin_step()
        starting = self._launch(self._supply.take())
        return [*starting, *draws, *([] if draws else self._close_places())]

    def _begin_step(self) -> list[Decision]:
        self._is_preparing = False
        drawn = self._supply.take()
        starting = self._launch(drawn)
        self._places = min(self._num_prompts, len(self._live))
        if not self._places:
            return [self._end_run()]
        opening = BeginRound(
            round=self._step,
            step=self._step,
            kind=RoundKind.ASYNC,
            num_prompts_launched=len(drawn),
            num_prompts_needed=self._places,
            num_responses_launched=self._num_responses,
            num_responses_needed=self._num_responses,
        )
        return [opening, *starting, *self._fill_batch(self._live.values())]

    def _launch(self, prompts: Sequence[DrawnPrompt]) -> list[StartRequests]:
        groups = [
            LiveGroup(
                drawn,
                bytearray([RUNNING]) * self._num_responses,
                number=self._next_number + place,
                birth=self._step,
                birth_version=self._policy_version,
            )
            for place, drawn in enumerate(prompts)
        ]
        self._live |= {group.prompt: group for group in groups}
        self._num_by_birth.update(group.birth for group in groups)
        self._num_admitted += len(groups)
        self._next_number += len(groups)
        requests = tuple(request for group in groups for request in group.requests(RUNNING))
        return [StartRequests(requests=requests)] if requests else []

    # Facts

    def _count_finish(self, event: ResponseFinished) -> tuple[Decision, ...]:
        group = self._running_group(event)
        if group is None:
            return ()
        group.samples[event.request.sample] = FINISHED
        return (ScoreResponse(request=event.request),)

    def _running_group(self, event: ResponseFinished | TurnFinished) -> LiveGroup | None:
        """As `RoundLedger.running_group`."""
        group = self._group_of(event.request)
        if group is None or group.samples[event.request.sample] != RUNNING:
            return None
        versions = [span.policy_version for span in sampled(event.spans)]
        if not versions or min(versions) < group.birth_version or max(versions) > self._newest_version:
            raise ImpossibleEvent(
                f"{event.request} was generated by the policy versions {versions}.",
                f"It was admitted under version {group.birth_version}; engines hold {self._newest_version} at most.",
            )
        return group

    def _count_reward(self, event: RewardComputed) -> list[Decision]:
        group, sample = self._group_of(event.request), event.request.sample
        if group is None or group.samples[sample] == SCORED:
            return []
        if group.samples[sample] == RUNNING:
            raise ImpossibleEvent(f"{event.request} was scored before it finished.", "A response is scored after it.")
        group.score(sample, event.reward)
        if not group.is_complete:
            return []
        if self._filters and not group.has_variance:
            return self._drop(group)
        return self._fill_batch([group])

    def _give_up(self, request: RequestId) -> list[Decision]:
        """Drop the prompt of a sample that will never finish."""
        group = self._group_of(request)
        if group is None or group.samples[request.sample] != RUNNING:
            return []
        others = tuple(each for each in group.requests(RUNNING) if each != request)
        return [*([StopRequests(requests=others)] if others else []), *self._drop(group)]

    def _group_of(self, request: RequestId) -> LiveGroup | None:
        """Look up the group of a request; None if it was accepted or dropped.

        Raises:
            ImpossibleEvent: The request was never made.
        """
        if request.round > self._step:
            raise ImpossibleEvent(f"{request} belongs to a step to come.", f"The last step is {self._step}.")
        group = self._live.get(request.prompt)
        if group is not None and (group.birth != request.round or not 0 <= request.sample < len(group.samples)):
            raise ImpossibleEvent(f"{request} was never launched.", f"The prompt was admitted in step {group.birth}.")
        return group

    # Acceptance

    def _fill_batch(self, candidates: Iterable[LiveGroup]) -> list[Decision]:
        """Accept those groups that may be, in the order of their admission, and end the round with the last place."""
        if not self._places:
            return []
        if self._is_fifo:
            candidates = takewhile(lambda group: group.is_complete, self._live.values())
        decisions: list[Decision] = []
        for group in [group for group in candidates if group.is_complete]:
            if self._places and (self._is_fifo or self._holds_without(group)):
                self._places -= 1
                self._forget(group)
                self._accepted.append((group.number, group.prompt))
                samples = tuple(range(self._num_responses))
                decisions.append(AcceptGroup(round=group.birth, prompt=group.prompt, samples=samples))
        return decisions if self._places else [*decisions, self._end_round()]

    def _holds_without(self, group: LiveGroup) -> bool:
        """Whether (H) holds after this group is accepted."""
        return self._holds(self._num_by_birth - Counter([group.birth]), self._places - 1)

    def _holds(self, num_by_birth: Counter[int], num_free: int) -> bool:
        """Whether (H) holds with so many groups of each birth not accepted, and so many places free."""
        num_due = 0
        for later in range(self._bound + 1):
            num_due += num_by_birth[self._step + later - self._bound]
            if num_due > later * self._num_prompts + num_free:
                return False
        return True

    def _drop(self, group: LiveGroup) -> list[Decision]:
        """Leave a prompt for good, and have another one admitted for it. Fewer are due then, so others may follow."""
        self._forget(group)
        self._num_admitted -= 1
        self._num_dropped += 1
        self._owed[group.domain] += 1
        decisions = [DropPrompt(round=group.birth, prompt=group.prompt), *self._fill_batch(self._live.values())]
        num_launched = self._num_prompts + self._num_dropped
        if self._places and num_launched > self._most_launched and self._supply.open_weights:
            failing = FailRun(
                round=self._step,
                num_prompts_launched=num_launched,
                num_prompts_dropped=self._num_dropped,
                num_prompts_needed=self._places,
            )
            return [*decisions, failing]
        return [*decisions, *self._admit()]

    def _close_places(self) -> list[Decision]:
        """Give up places that no prompt is left for: the data has ended."""
        if not self._places or len(self._live) >= self._places:
            return []
        self._places = len(self._live)
        return [] if self._places else [self._end_round()]

    def _end_round(self) -> EndRound | EndRun:
        """End the round, and the run when it has nothing to train: nothing is left then."""
        if not self._accepted:
            return self._end_run()
        prompts = tuple(prompt for _, prompt in sorted(self._accepted))
        return EndRound(round=self._step, step=self._step, prompts=prompts, long_queue_length=0)

    def _end_run(self) -> EndRun:
        self._next_step = self._step
        return EndRun()

    def _forget(self, group: LiveGroup) -> None:
        del self._live[group.prompt]
        self._num_by_birth[group.birth] -= 1
        if not self._num_by_birth[group.birth]:
            del self._num_by_birth[group.birth]

    # Views, self-check and snapshot

    def next_kind(self) -> RoundKind:
        return RoundKind.ASYNC

    def running_requests(self) -> list[RequestId]:
        return [request for group in self._live.values() for request in group.requests(RUNNING)]

    def due_requests(self) -> list[RequestId]:
        """Those of `running_requests` whose groups are due in this step, while its batch is not full."""
        due = [group for group in self._live.values() if group.birth == self._step - self._bound and self._places]
        return [request for group in due for request in group.requests(RUNNING)]

    def check(self) -> None:
        self._supply.check()
        if self._num_by_birth != Counter(group.birth for group in self._live.values()):
            raise InvariantViolated(f"The births of what is live are counted as {self._num_by_birth}.")
        num_free = self._num_prompts if self._is_preparing else self._places
        if not self._holds(self._num_by_birth, num_free):
            raise InvariantViolated(f"Step {self._step} with {num_free} free places: {self._num_by_birth} is too late.")
        births = self._num_by_birth.keys()
        if births and not self._step - self._bound <= min(births) <= max(births) <= self._step:
            raise InvariantViolated(f"In step {self._step} groups live that were born in {sorted(births)}.")
        if len(self._live) + len(self._accepted) > self._num_prompts + self._num_ahead:
            raise InvariantViolated(f"{len(self._live)} groups live, and {len(self._accepted)} are accepted.")
        if not 0 <= self._num_admitted <= self._num_wanted <= self._num_in_all:
            raise InvariantViolated(f"{self._num_admitted} groups are admitted, of {self._num_wanted}.")
        numbers = [group.number for group in self._live.values()]
        if numbers != sorted(set(numbers)):
            raise InvariantViolated(f"The order of admission is {numbers}.")
        first = next(iter(self._live.values()), None)
        if self._places and self._is_fifo and first is not None and first.is_complete:
            raise InvariantViolated(f"{first.prompt} is complete, and first, and has no place.")
        stuck = [group.prompt for group in self._live.values() if group.is_complete and self._holds_without(group)]
        if self._places and not self._is_fifo and stuck:
            raise InvariantViolated(f"{stuck} are complete, and have no place.")

    def snapshot(self) -> dict[str, Any]:
        return {
            "supply": self._supply.snapshot(),
            "step": self._step,
            "next_step": self._next_step,
            "policy_version": self._policy_version,
            "newest_version": self._newest_version,
            "is_preparing": self._is_preparing,
            "places": self._places,
            "accepted": [[number, list(prompt)] for number, prompt in self._accepted],
            "num_dropped": self._num_dropped,
            "num_wanted": self._num_wanted,
            "num_admitted": self._num_admitted,
            "next_number": self._next_number,
            "live": [group.snapshot() for group in self._live.values()],
            "owed": dict(self._owed),
        }

    @classmethod
    def restore(cls, settings: SchedulerSettings, snapshot: dict[str, Any]) -> Self:
        machine = cls(settings)
        machine._supply = PromptSupply.restore(dict(settings.domain_weights), snapshot["supply"])
        machine._step, machine._next_step = snapshot["step"], snapshot["next_step"]
        machine._policy_version = snapshot["policy_version"]
        machine._newest_version = snapshot["newest_version"]
        machine._is_preparing, machine._places = snapshot["is_preparing"], snapshot["places"]
        machine._accepted = [(number, PromptId(*prompt)) for number, prompt in snapshot["accepted"]]
        machine._num_dropped, machine._num_wanted = snapshot["num_dropped"], snapshot["num_wanted"]
        machine._num_admitted, machine._next_number = snapshot["num_admitted"], snapshot["next_number"]
        machine._live = {group.prompt: group for group in map(LiveGroup.restore, snapshot["live"])}
        machine._num_by_birth = Counter(group.birth for group in machine._live.values())
        machine._owed = Counter({Domain(domain): number for domain, number in snapshot["owed"].items()})
        return machine
