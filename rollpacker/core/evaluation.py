"""When the policy is evaluated on held-out prompts, and which of their responses are still owed.

    idle ──EvaluationOffered, and it is due──> open ──the last reward──> idle        BeginEvaluation ... EndEvaluation

    request: generating ──finished──> scoring ──rewarded──> done

An evaluation is a round of its own between two training rounds. It waits for every response of every prompt: nothing
races, nothing is dropped and nothing is stopped, because the slow responses that a race leaves out are the long ones,
and without them a score is not the policy's. Its prompts have no epoch and no place in a batch, so no machine beside
the router sees them: quotas, long queue, dynamic sampling, planner, stream scaling and time limits learn nothing here.

Invariant: each (set, prompt, sample) is launched once and counted once per evaluation, and each step is evaluated at
most once. After a restore from between two steps an evaluation that was cut is offered, and made, again.
"""

from __future__ import annotations

from typing import Any, Self

from rollpacker.core.batching_machine import StartRequests
from rollpacker.core.commands import BeginEvaluation, EndEvaluation, ScoreResponse
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import (
    EvaluationOffered,
    ResponseAborted,
    ResponseEvicted,
    ResponseFinished,
    RewardComputed,
)
from rollpacker.core.ids import HELD_OUT, PromptId, RequestId, held_out_prompt
from rollpacker.core.settings import EvaluationSettings

EvaluationEvent = EvaluationOffered | ResponseFinished | ResponseAborted | ResponseEvicted | RewardComputed
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
        self._require_known(event.request)
        match event:
            case ResponseFinished() if event.request in self._generating:
                del self._generating[event.request]
                self._scoring[event.request] = None
                return (ScoreResponse(request=event.request),)
            case RewardComputed() if event.request in self._generating:
                raise ImpossibleEvent(f"{event.request} was scored before it had finished.")
            case RewardComputed() if event.request in self._scoring:
                del self._scoring[event.request]
                return () if self.is_open else (EndEvaluation(step=self._last),)
            case _:
                return ()  # late: of an engine that was lost, or told twice

    def _offer(self, event: EvaluationOffered) -> tuple[EvaluationDecision, ...]:
        if self.is_open:
            raise ImpossibleEvent(
                f"An evaluation of step {event.step} was offered during that of step {self._last}.",
                "One is made at a time.",
            )
        if event.step < self._last:
            raise ImpossibleEvent(f"An evaluation of step {event.step} was offered after step {self._last}.")
        if event.step == self._last or not self._is_due(event):
            return ()
        self._last = event.step
        requests = tuple(
            RequestId(event.step, prompt, sample)
            for prompt, num_samples in self._num_samples.items()
            for sample in range(num_samples)
        )
        self._generating = dict.fromkeys(requests)
        return BeginEvaluation(step=event.step, num_requests=len(requests)), StartRequests(requests=requests)

    def _is_due(self, event: EvaluationOffered) -> bool:
        settings = self._settings
        is_turn = event.step > 0 and settings.every_steps > 0 and event.step % settings.every_steps == 0
        return is_turn or (settings.at_start and event.step == 0) or (settings.at_end and event.is_last)

    def _require_known(self, request: RequestId) -> None:
        num_samples = self._num_samples.get(request.prompt, 0)
        if not (0 <= request.sample < num_samples and 0 <= request.round <= self._last):
            raise ImpossibleEvent(f"{request} was never launched.", f"The last evaluation was of step {self._last}.")

    def running_requests(self) -> list[RequestId]:
        """List what was started and has not finished."""
        return list(self._generating)

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

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "last": self._last,
            "generating": [[list(request.prompt), request.sample] for request in self._generating],
            "scoring": [[list(request.prompt), request.sample] for request in self._scoring],
        }

    @classmethod
    def restore(cls, settings: EvaluationSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; between two steps the settings may be others."""
        machine = cls(settings)
        machine._last = last = snapshot["last"]
        machine._generating, machine._scoring = (
            {RequestId(last, PromptId(*prompt), sample): None for prompt, sample in snapshot[key]}
            for key in ("generating", "scoring")
        )
        return machine
