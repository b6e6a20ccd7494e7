"""When the policy is evaluated on held-out prompts, and which of their responses are still owed.

    idle ──EvaluationOffered, and it is due──> open ──the last reward──> idle        BeginEvaluation ... EndEvaluation

    with `fill`, between the first step and the last:
    idle ──EvaluationOffered, and it is due──> due ──BeginRound, and nothing races──> open ──the last reward──> idle
    open ──EnginesWanted──> open, with SetTimer ──TimerFired──> idle, and what has no reward is stopped

    request: generating ──finished──> scoring ──rewarded──> done

An evaluation is a round of its own between two training rounds, or fills the idle slots of a training round
(`core.filling`). It waits for every response of every prompt: nothing races, nothing is dropped, and a set whose
responses were stopped has no score, because the slow responses that are left out are the long ones, and without them a
score is not the policy's. Its prompts have no epoch and no place in a batch, so no machine beside the router sees them:
quotas, long queue, dynamic sampling, planner, stream scaling and time limits learn nothing here. What is filled takes
some of the engines' speed, so nothing may depend on who is first: a round is filled only if its batch takes everything
that it launches. That is every plain and every long round, and no short one. The evaluation before the first step
and the one after the last step are rounds of their own: the others are compared with the one, and no round comes after
the other.

Invariant: each (set, prompt, sample) is launched once and counted once per evaluation, and each step is evaluated at
most once. After a restore from between two steps an evaluation that was cut is offered, and made, again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any, Self

from rollpacker.core.batching_machine import StartRequests
from rollpacker.core.commands import (
    Abort,
    BeginEvaluation,
    BeginRound,
    EndEvaluation,
    Evict,
    Launch,
    ScoreResponse,
    SetTimer,
)
from rollpacker.core.environment_events import EnvironmentEvent
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    EnginesWanted,
    EvaluationOffered,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
    TimerFired,
)
from rollpacker.core.filling import Filling
from rollpacker.core.ids import HELD_OUT, EngineId, PromptId, RequestId, held_out_prompt, set_of
from rollpacker.core.settings import EvaluationSettings

EvaluationEvent = (
    EvaluationOffered | ResponseFinished | ResponseAborted | ResponseEvicted | RewardComputed | EnvironmentEvent
)
EvaluationDecision = BeginEvaluation | StartRequests | ScoreResponse | EndEvaluation


class Evaluation:
    """Asks for the responses of an evaluation and counts them in."""

    def __init__(self, settings: EvaluationSettings) -> None:
        self._settings = settings
        self._num_samples = {
            held_out_prompt(held_out.name, key): held_out.num_samples
            for held_out in settings.sets
            for key in held_out.keys
        }
        """Of each prompt, in launch order."""
        self._last = -1
        """The open evaluation's step, or that of the last one; -1 before the first."""
        self._generating: dict[RequestId, None] = {}
        self._scoring: dict[RequestId, None] = {}
        self._filling = Filling()
        self._is_due = False
        """An evaluation waits for a round that it may fill."""
        self._fills_a_round = False
        """The open evaluation fills a round, or the last one did."""
        self._filled_round = -1
        """The last round that was filled."""
        self._lengths = {held_out.name: (0, 0) for held_out in settings.sets}
        """With `fill`, of each set's finished responses: tokens, and how many they were."""

    @property
    def is_open(self) -> bool:
        """True while responses or rewards are owed."""
        return bool(self._generating or self._scoring)

    def handle(self, event: EvaluationEvent) -> tuple[EvaluationDecision, ...]:
        """Take in one fact.

        Raises:
            ImpossibleEvent: It cannot have happened; nothing was changed.
        """
        if isinstance(event, EvaluationOffered):
            return self._offer(event)
        request = event.request
        self._require_known(request)
        if isinstance(event, EnvironmentEvent):
            return ()  # the request runs on
        is_owed = request in self._generating
        if isinstance(event, RewardComputed):
            return self._count_reward(event, is_owed=is_owed)
        if isinstance(event, ResponseAborted) and self._filling.stays(request, event.engine):
            raise ImpossibleEvent(f"{request} was aborted, which was not ordered.", "An abort follows its order.")
        is_held = self._filling.take_back(request, event.engine)
        if not is_owed or (self._fills_a_round and not is_held):
            return ()  # late: of an engine that was lost, or told twice
        if isinstance(event, ResponseFinished):
            del self._generating[request]
            self._scoring[request] = None
            self._count_length(request, event.num_tokens)
            return (ScoreResponse(request=request),)
        if is_held:
            self._filling.wait_first([request])
        return ()

    def _count_reward(self, event: RewardComputed, *, is_owed: bool) -> tuple[EvaluationDecision, ...]:
        if is_owed:
            raise ImpossibleEvent(f"{event.request} was scored before it had finished.")
        if event.request not in self._scoring:
            return ()
        del self._scoring[event.request]
        return () if self.is_open else (EndEvaluation(step=self._last),)

    def _require_known(self, request: RequestId) -> None:
        num_samples = self._num_samples.get(request.prompt, 0)
        if not (0 <= request.sample < num_samples and 0 <= request.round <= self._last):
            raise ImpossibleEvent(f"{request} was never launched.", f"The last evaluation was of step {self._last}.")

    # An evaluation begins

    def _offer(self, event: EvaluationOffered) -> tuple[EvaluationDecision, ...]:
        if self.is_open:
            raise ImpossibleEvent(
                f"An evaluation of step {event.step} was offered during that of step {self._last}.",
                "One is made at a time.",
            )
        if event.step < self._last:
            raise ImpossibleEvent(f"An evaluation of step {event.step} was offered after step {self._last}.")
        is_turn = self.has_its_turn(event.step) or (self._settings.at_end and event.is_last)
        if event.step == self._last or not (self._is_due or is_turn):
            return ()
        if self._settings.fill and event.step > 0 and not event.is_last:
            self._is_due = True
            return ()
        begin, requests = self._open(event.step)
        return begin, StartRequests(requests=requests)

    def has_its_turn(self, step: int) -> bool:
        """Tell whether one is due after so many steps, were it not the last."""
        settings = self._settings
        if step == 0:
            return settings.at_start
        return settings.every_steps > 0 and step % settings.every_steps == 0

    def begin_round(self, command: BeginRound) -> tuple[BeginEvaluation, ...]:
        """Fill a round that has begun, if an evaluation is due and the round's batch takes all that it launches."""
        if not self._is_due or command.races:
            return ()
        begin, requests = self._open(command.step)
        self._fills_a_round, self._filled_round = True, command.round
        self._filling.begin(requests)
        return (begin,)

    def _open(self, step: int) -> tuple[BeginEvaluation, tuple[RequestId, ...]]:
        self._last = step
        self._is_due = self._fills_a_round = False
        requests = [
            RequestId(step, prompt, sample)
            for prompt, num_samples in self._num_samples.items()
            for sample in range(num_samples)
        ]
        requests.sort(key=self._shortness)  # stable, and without lengths in launch order
        self._generating = dict.fromkeys(requests)
        return BeginEvaluation(step=step, num_requests=len(requests)), tuple(requests)

    def _shortness(self, request: RequestId) -> float:
        """What sorts the sets with the longest responses to the front; a set of which nothing is known goes first."""
        num_tokens, count = self._lengths[set_of(request)]
        return -num_tokens / count if count else -math.inf

    def _count_length(self, request: RequestId, num_tokens: int) -> None:
        if self._settings.fill:
            before, count = self._lengths[set_of(request)]
            self._lengths[set_of(request)] = before + num_tokens, count + 1

    # Beside a training round

    @property
    def is_filling(self) -> bool:
        """True while an evaluation is open that fills a round."""
        return self._fills_a_round and self.is_open

    def fill(self, rooms_of: Callable[[int, int], Mapping[EngineId, int]]) -> tuple[Launch | Evict, ...]:
        """Move held-out requests to where there is room for them, while they fill a round.

        Args:
            rooms_of: `Router.rooms`.
        """
        settings = self._settings.fill
        if not (settings and self.is_filling):
            return ()
        return tuple(self._filling.fill(rooms_of(settings.num_slots, settings.max_tokens)))

    def lose(self, engine: EngineId) -> None:
        """Note that what an engine had is gone."""
        self._filling.wait_first([request for request in self._filling.lose(engine) if request in self._generating])

    def are_empty(self, engines: Collection[EngineId]) -> bool:
        """Tell whether some engines have nothing of an evaluation that fills a round."""
        return self._filling.are_empty(engines)

    def has_filled(self, round_number: int) -> bool:
        """Tell whether the last evaluation that filled a round filled this one."""
        return round_number == self._filled_round

    def wind_up(self, event: EnginesWanted, now: float) -> tuple[SetTimer, ...]:
        """Give an evaluation that fills a round its time to end.

        Raises:
            ImpossibleEvent: It does not belong to this step; nothing was changed.
        """
        if not self._settings.fill or not self._fills_a_round or event.step != self._last:
            raise ImpossibleEvent(f"{event}: the last evaluation was of step {self._last}.")
        return (SetTimer(timer=self._timer, at_s=now + self._settings.fill.grace_s),) if self.is_open else ()

    def fire(self, event: TimerFired) -> tuple[Abort | EndEvaluation, ...]:
        """Stop what has no reward when the time is over; nothing if the evaluation has ended, or for other timers."""
        if not self.is_filling or event.timer != self._timer:
            return ()
        self._generating, self._scoring = {}, {}
        return *self._filling.stop(), EndEvaluation(step=self._last)

    @property
    def _timer(self) -> str:
        return f"evaluation {self._last}"

    # Views, self-check and snapshot

    def running_requests(self) -> list[RequestId]:
        """List what was started and has not finished, without what fills a round."""
        return [] if self._fills_a_round else list(self._generating)

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: The state contradicts itself.
        """
        owed = [*self._generating, *self._scoring]
        if len(set(owed)) != len(owed):
            raise InvariantViolated("A held-out response is generated and scored at once.")
        for request in owed:
            if request.round != self._last or request.prompt.epoch != HELD_OUT:
                raise InvariantViolated(f"{request} is owed to the evaluation of step {self._last}.")
            self._require_known(request)
        placed = self._filling.requests
        if len(set(placed)) != len(placed) or (self.is_filling and not self._generating.keys() <= set(placed)):
            raise InvariantViolated(f"Of the held-out responses {list(self._generating)} these are placed: {placed}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        plain: dict[str, Any] = {
            "last": self._last,
            "generating": [[list(request.prompt), request.sample] for request in self._generating],
            "scoring": [[list(request.prompt), request.sample] for request in self._scoring],
        }
        if self._settings.fill:
            plain["fill"] = {
                "is_due": self._is_due,
                "is_filling": self._fills_a_round,
                "filled_round": self._filled_round,
                "lengths": [[name, *lengths] for name, lengths in self._lengths.items()],
                "filling": self._filling.snapshot(),
            }
        return plain

    @classmethod
    def restore(cls, settings: EvaluationSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; between two steps the settings may be others."""
        machine = cls(settings)
        machine._last = last = snapshot["last"]
        machine._generating, machine._scoring = (
            {RequestId(last, PromptId(*prompt), sample): None for prompt, sample in snapshot[key]}
            for key in ("generating", "scoring")
        )
        fill = snapshot.get("fill")
        if settings.fill and fill:
            machine._is_due, machine._fills_a_round = fill["is_due"], fill["is_filling"]
            machine._filled_round = fill["filled_round"]
            machine._lengths |= {
                name: (num_tokens, count) for name, num_tokens, count in fill["lengths"] if name in machine._lengths
            }
            machine._filling = Filling.restore(fill["filling"])
        return machine
