"""Which tensor-parallel degree the next round runs on: the preemptions of the rounds before it decide.

An engine of a larger degree has more KV memory per running request, so it preempts less; engines of a smaller degree
are more, and lose less to communication. Short rounds want the former and long rounds the latter, so each kind of
round has a controller of its own.

    fact about a round of the kind                              its degree
    more preemptions than max_growth times the reference        doubles
    no preemption in `patience` rounds of the kind in a row     halves

The reference is the previous round of the same kind on the same degree. Without one there is no verdict: after the
first round of a kind, and after the first round since its degree changed.

The degree **stays** when the change does not pay, so far as is known: when the kind's last measured rate (tokens per
second of rollout) on the other degree was lower than the present one, and that measurement is at most
`num_rounds_remembered` rounds of the kind old. Else a kind whose preemptions grow with its lengths would go to and fro.

A round may run on another degree than its kind's: a draw that meets the end of the data turns a short round into a long
one. Such a round's rate is remembered; it gives no verdict.

Invariant: a verdict moves one step within the allowed degrees, and an engine set changes only between rounds.

Source: RollPacker, section 4.2: the thresholds and the doubling. One controller per kind, the reference per kind, and
the memory of rates are this project's. The time that a change takes is not weighed; it is recorded by the driver.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rollpacker.core.commands import BeginRound, RoundKind, UseParallelism
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import RoundMeasured
from rollpacker.core.settings import ParallelismSettings


@dataclass(slots=True, kw_only=True)
class _Controller:
    """What is known about one kind of round."""

    degree: int
    """What its next round should run on."""
    reference: int | None = None
    """Preemptions of its last round on that degree."""
    num_calm: int = 0
    """Its last rounds in a row without a preemption, since the degree changed."""
    num_rounds: int = 0
    """Measured so far."""
    rates: dict[int, tuple[float, int]] = field(default_factory=dict)
    """Per degree, tokens per second of its last round there, and which of the kind's rounds that was."""


class ParallelismPlanner:
    """Orders another degree between rounds."""

    def __init__(self, settings: ParallelismSettings) -> None:
        self._settings = settings
        self._controllers = {kind: _Controller(degree=settings.initial) for kind in RoundKind}
        self._in_use = settings.initial
        self._round = -1
        """The open round, or the last one."""
        self._kind = RoundKind.PLAIN
        """Of that round."""
        self._is_open = False
        self._is_measurable = False
        """True from the end of a round until it is measured or the next step starts."""

    @property
    def in_use(self) -> int:
        """The degree that the engines have, or change to."""
        return self._in_use

    # The round

    def start_step(self) -> None:
        """Note that it is too late to change the engines."""
        self._is_measurable = False

    def begin_round(self, command: BeginRound) -> None:
        """Note which round is measured next."""
        self._round, self._kind = command.round, command.kind
        self._is_open = True

    def end_round(self) -> None:
        """Note that the round may be measured."""
        self._is_open, self._is_measurable = False, True

    def measure(self, event: RoundMeasured, next_kind: RoundKind) -> tuple[UseParallelism, ...]:
        """Learn from the last round, and order the degree of the next one if the engines have another.

        Args:
            event: What the last round cost; one that was measured before, or too late, changes nothing.
            next_kind: What the next round will be, as far as anyone can know.

        Raises:
            ImpossibleEvent: The round has not ended, or its numbers cannot be; nothing was changed.
        """
        if event.round > self._round or (event.round == self._round and self._is_open):
            raise ImpossibleEvent(
                f"Round {event.round} was measured before its end.", f"The last round is {self._round}."
            )
        if min(event.num_preemptions, event.num_tokens) < 0 or not 0 <= event.rollout_time_s < math.inf:
            raise ImpossibleEvent(f"{event} cannot have been measured.", "Nothing is below 0, and the time is finite.")
        if event.round < self._round or not self._is_measurable:
            return ()
        self._is_measurable = False
        self._learn(self._controllers[self._kind], event)
        degree = self._controllers[next_kind].degree
        if degree == self._in_use:
            return ()
        self._in_use = degree
        return (UseParallelism(tensor_parallel=degree),)

    # The verdict

    def _learn(self, controller: _Controller, event: RoundMeasured) -> None:
        controller.num_rounds += 1
        if event.rollout_time_s:
            controller.rates[self._in_use] = (event.num_tokens / event.rollout_time_s, controller.num_rounds)
        if self._in_use != controller.degree:
            return
        reference, controller.reference = controller.reference, event.num_preemptions
        controller.num_calm = 0 if event.num_preemptions else controller.num_calm + 1
        if reference is None:
            return
        degree = controller.degree
        if event.num_preemptions > self._settings.max_growth * reference:
            degree *= 2
        elif controller.num_calm >= self._settings.patience:
            degree //= 2
        if degree != controller.degree and degree in self._settings.degrees and not self._is_slower(controller, degree):
            controller.degree, controller.reference, controller.num_calm = degree, None, 0

    def _is_slower(self, controller: _Controller, degree: int) -> bool:
        """Tell whether the kind ran slower on another degree, so far as is remembered."""
        if degree not in controller.rates or controller.degree not in controller.rates:
            return False
        rate, measured_at = controller.rates[degree]
        is_remembered = controller.num_rounds - measured_at <= self._settings.num_rounds_remembered
        return is_remembered and rate < controller.rates[controller.degree][0]

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: A degree is not allowed, or a controller contradicts itself.
        """
        degrees = set(self._settings.degrees)
        for kind, controller in self._controllers.items():
            calm_without_reference = controller.reference is None and controller.num_calm
            if not {controller.degree, self._in_use, *controller.rates} <= degrees or calm_without_reference:
                raise InvariantViolated(f"The planner of {kind} rounds contradicts itself: {controller}")
            if any(measured_at > controller.num_rounds for _, measured_at in controller.rates.values()):
                raise InvariantViolated(f"The planner of {kind} rounds remembers rounds to come: {controller}")
        if self._is_open and self._is_measurable:
            raise InvariantViolated(f"Round {self._round} is open and may be measured.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "controllers": {
                kind.value: asdict(controller)
                | {"rates": [[degree, *measured] for degree, measured in controller.rates.items()]}
                for kind, controller in self._controllers.items()
            },
            "in_use": self._in_use,
            "round": self._round,
            "kind": self._kind.value,
            "is_open": self._is_open,
            "is_measurable": self._is_measurable,
        }

    @classmethod
    def restore(cls, settings: ParallelismSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        for kind, plain in snapshot["controllers"].items():
            rates = {degree: (rate, measured_at) for degree, rate, measured_at in plain["rates"]}
            machine._controllers[RoundKind(kind)] = _Controller(**{**plain, "rates": rates})
        machine._in_use = snapshot["in_use"]
        machine._round = snapshot["round"]
        machine._kind = RoundKind(snapshot["kind"])
        machine._is_open = snapshot["is_open"]
        machine._is_measurable = snapshot["is_measurable"]
        return machine
