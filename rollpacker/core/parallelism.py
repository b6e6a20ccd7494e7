"""Which tensor-parallel degree the next round runs on: the preemptions of the rounds before it decide.

An engine of a larger degree has more KV memory per running request, so it preempts less; engines of a smaller degree
are more, and lose less to communication. Short rounds want the former and long rounds the latter, so each kind of
round has a controller of its own.

    fact about a round of the kind                              its degree
    its first one, where what passes take is known              the fastest by a guess (`core.round_time_model`)
    more preemptions than max_growth times the reference        doubles
    no preemption in `patience` rounds of the kind in a row     halves
    after a change: slower than on the degree before            goes back

The reference is the previous round of the same kind on the same degree. Without one the counts say nothing: after the
first round of a kind, and after the first round since its degree changed.

How fast a kind is on a degree is a mean: tokens per second of rollout, over those of its last round and the
`num_rounds_remembered` before it that ran there. Rounds differ by chance, so a change that one of them made is undone
when later ones say so. Only tokens that the batch needed count: engines that do more for responses that are aborted in
the end are no faster.

A change has to **pay**, so far as is known. What it gains follows from the kind's rates on both degrees; what it costs
is the time that the last change to that degree took, and where kinds alternate the time of the way back. The gain
counts for as many rounds as the kind has in a row on average, for `num_rounds_remembered` where there is no other kind.
One that does not pay is not made: no verdict is given for it, and at the boundary between two kinds whose degrees
differ the engines stay as they are. What is not known is tried. So a kind whose preemptions grow with its lengths does
not go to and fro, and a long round that would save a second does not cost two changes.

A round may run on another degree than its kind's: when the change did not pay, or when a draw that meets the end of the
data turns a short round into a long one. Such a round's rate is remembered; its counts give no verdict.

Invariant: a verdict moves one step within the allowed degrees, a guess anywhere within them, and an engine set changes
only between rounds.

Source: RollPacker, section 4.2: the thresholds, the doubling, and a profile beside the counts. One controller per kind,
the reference per kind, the memory of rates and the weighing of a change's time are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rollpacker.core.commands import BeginRound, RoundKind, UseParallelism
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import RoundMeasured
from rollpacker.core.round_time_model import fastest_degree
from rollpacker.core.settings import ParallelismSettings


@dataclass(slots=True, kw_only=True)
class _Controller:
    """What is known about one kind of round."""

    degree: int
    """What its next round should run on."""
    came_from: int | None = None
    """The degree before the last change, until the kind goes back to it."""
    reference: int | None = None
    """Preemptions of its last round on that degree."""
    num_calm: int = 0
    """Its last rounds in a row without a preemption, since the degree changed."""
    num_rounds: int = 0
    """Measured so far."""
    num_rows: int = 0
    """Begun so far, of rounds of this kind without another kind between them."""
    rounds: list[tuple[int, int, float]] = field(default_factory=list)
    """The remembered ones, the last one last: degree, tokens, and seconds of rollout."""

    def rate_on(self, degree: int) -> float | None:
        """Tokens per second over all remembered rounds on a degree; None without any."""
        of_degree = [(num_tokens, time_s) for at, num_tokens, time_s in self.rounds if at == degree]
        seconds = sum(time_s for _, time_s in of_degree)
        return sum(num_tokens for num_tokens, _ in of_degree) / seconds if seconds else None

    def move(self, degree: int, came_from: int | None) -> None:
        self.degree, self.came_from, self.reference, self.num_calm = degree, came_from, None, 0


class ParallelismPlanner:
    """Orders another degree between rounds."""

    def __init__(self, settings: ParallelismSettings) -> None:
        self._settings = settings
        self._controllers = {kind: _Controller(degree=settings.initial) for kind in RoundKind}
        self._in_use = settings.initial
        self._switch_s: dict[int, float] = {}
        """What the last change to each degree took."""
        self._round = -1
        """The open round, or the last one."""
        self._kind = RoundKind.PLAIN
        """Of that round."""
        self._is_open = False
        self._is_measurable = False
        """True from the end of a round until it is measured or the next step starts."""
        self._gain: float | None = None

    @property
    def in_use(self) -> int:
        """The degree that rounds begin with: the engines have it, or change to it."""
        return self._in_use

    @property
    def engine_share(self) -> float:
        """GPUs of an engine of that degree, over those of one of the configured degree."""
        return self._in_use / self._settings.initial

    @property
    def gain(self) -> float | None:
        """The last measured round's rate over that of its kind on the degree of before, if any is remembered."""
        return self._gain

    # The round

    def start_step(self) -> None:
        """Note that it is too late to change the engines."""
        self._is_measurable = False

    def begin_round(self, command: BeginRound) -> None:
        """Note which round is measured next."""
        if self._round < 0 or command.kind is not self._kind:
            self._controllers[command.kind].num_rows += 1
        self._round, self._kind = command.round, command.kind
        self._is_open = True

    def end_round(self) -> None:
        """Note that the round may be measured."""
        self._is_open, self._is_measurable = False, True

    def awaits(self, event: RoundMeasured) -> bool:
        """Tell whether a measurement is the last round's, and in time."""
        return event.round == self._round and self._is_measurable

    def measure(
        self, event: RoundMeasured, next_kind: RoundKind, *, was_filled: bool = False
    ) -> tuple[UseParallelism, ...]:
        """Learn from the last round, and order the degree of the next one if the engines have another.

        Args:
            event: What the last round cost; one that was measured before, or too late, changes nothing.
            next_kind: What the next round will be, as far as anyone can know.
            was_filled: An evaluation had some of the engines' speed, so that the round says nothing about its kind.

        Raises:
            ImpossibleEvent: The round has not ended, or its numbers cannot be; nothing was changed.
        """
        if event.round > self._round or (event.round == self._round and self._is_open):
            raise ImpossibleEvent(
                f"Round {event.round} was measured before its end.", f"The last round is {self._round}."
            )
        is_timed = 0 <= event.rollout_time_s < math.inf and 0 <= event.switch_time_s < math.inf
        if min(event.num_preemptions, event.num_tokens, *event.lengths_tokens) < 0 or not is_timed:
            raise ImpossibleEvent(f"{event} cannot have been measured.", "Nothing is below 0, and times are finite.")
        if not self.awaits(event):
            return ()
        self._is_measurable = False
        if event.switch_time_s:
            self._switch_s[self._in_use] = event.switch_time_s
        if not was_filled:
            self._learn(self._controllers[self._kind], event)
        controller = self._controllers[next_kind]
        degree = controller.degree
        if degree == self._in_use or not self._pays(controller, self._in_use, degree):
            return ()
        self._in_use = degree
        return (UseParallelism(tensor_parallel=degree),)

    # The verdict

    def _learn(self, controller: _Controller, event: RoundMeasured) -> None:
        controller.num_rounds += 1
        controller.rounds.append((self._in_use, event.num_tokens, event.rollout_time_s))
        del controller.rounds[: -self._settings.num_rounds_remembered - 1]
        self._gain = self._compare(controller)
        if controller.num_rounds == 1 and self._settings.costs and event.lengths_tokens:
            self._guess(controller, event.lengths_tokens)
        elif self._in_use == controller.degree:
            self._judge(controller, event.num_preemptions)

    def _guess(self, controller: _Controller, lengths_tokens: Sequence[int]) -> None:
        degree = fastest_degree(self._settings.costs, lengths_tokens, self._settings.prompt_tokens)
        if degree != controller.degree:
            controller.move(degree, came_from=self._in_use if self._in_use != degree else None)

    def _judge(self, controller: _Controller, num_preemptions: int) -> None:
        before = controller.came_from
        is_slower = before is not None and self._is_slower_than(controller, before)
        if before is not None and is_slower and self._pays(controller, controller.degree, before):
            controller.move(before, came_from=None)
            return
        reference, controller.reference = controller.reference, num_preemptions
        controller.num_calm = 0 if num_preemptions else controller.num_calm + 1
        if reference is None:
            return
        degree = controller.degree
        if num_preemptions > self._settings.max_growth * reference:
            degree *= 2
        elif controller.num_calm >= self._settings.patience:
            degree //= 2
        is_allowed = degree != controller.degree and degree in self._settings.degrees
        if is_allowed and self._pays(controller, controller.degree, degree):
            controller.move(degree, came_from=controller.degree)

    # What a change is worth

    def _is_slower_than(self, controller: _Controller, other: int) -> bool:
        """Tell whether the kind is slower on its degree than on another, so far as is remembered."""
        here, there = controller.rate_on(controller.degree), controller.rate_on(other)
        return here is not None and there is not None and here < there

    def _pays(self, controller: _Controller, here: int, there: int) -> bool:
        """Tell whether a change would gain its time back; what is not known is tried."""
        rate_here, rate_there = controller.rate_on(here), controller.rate_on(there)
        if rate_here is None or rate_there is None:
            return True
        if not (rate_here and rate_there):
            return rate_there >= rate_here
        _, num_tokens, _ = controller.rounds[-1]
        gain_s = num_tokens / rate_here - num_tokens / rate_there
        return gain_s >= 0 and gain_s * self._num_rounds_in_a_row(controller) >= self._cost_s(here, there)

    def _num_rounds_in_a_row(self, controller: _Controller) -> float:
        if not self._do_kinds_alternate():
            return self._settings.num_rounds_remembered
        return min(controller.num_rounds / max(controller.num_rows, 1), self._settings.num_rounds_remembered)

    def _cost_s(self, here: int, there: int) -> float:
        way_there = self._switch_s.get(there, 0.0)
        return way_there + self._switch_s.get(here, way_there) if self._do_kinds_alternate() else way_there

    def _do_kinds_alternate(self) -> bool:
        return sum(controller.num_rows > 0 for controller in self._controllers.values()) > 1

    def _compare(self, controller: _Controller) -> float | None:
        *earlier, (degree, num_tokens, time_s) = controller.rounds
        others = [other for other, _, _ in earlier if other != degree]
        before = controller.rate_on(others[-1]) if others else None
        return num_tokens / time_s / before if before and time_s else None

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: A degree is not allowed, or a controller contradicts itself.
        """
        degrees = set(self._settings.degrees)
        for kind, controller in self._controllers.items():
            calm_without_reference = controller.reference is None and controller.num_calm
            used = {controller.degree, self._in_use, *(degree for degree, _, _ in controller.rounds), *self._switch_s}
            if not used <= degrees or calm_without_reference:
                raise InvariantViolated(f"The planner of {kind} rounds contradicts itself: {controller}")
            if len(controller.rounds) > min(controller.num_rounds, self._settings.num_rounds_remembered + 1):
                raise InvariantViolated(f"The planner of {kind} rounds remembers too many: {controller}")
            if controller.came_from == controller.degree:
                raise InvariantViolated(f"The planner of {kind} rounds has not moved: {controller}")
        if self._is_open and self._is_measurable:
            raise InvariantViolated(f"Round {self._round} is open and may be measured.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "controllers": {
                kind.value: asdict(controller) | {"rounds": [list(each) for each in controller.rounds]}
                for kind, controller in self._controllers.items()
            },
            "in_use": self._in_use,
            "switch_s": [[degree, seconds] for degree, seconds in self._switch_s.items()],
            "round": self._round,
            "kind": self._kind.value,
            "is_open": self._is_open,
            "is_measurable": self._is_measurable,
            "gain": self._gain,
        }

    @classmethod
    def restore(cls, settings: ParallelismSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; degrees that are no longer allowed are forgotten."""
        machine = cls(settings)
        allowed = set(settings.degrees)
        for kind, plain in snapshot["controllers"].items():
            rounds = [tuple(each) for each in plain["rounds"][-settings.num_rounds_remembered - 1 :]]
            controller = _Controller(**{**plain, "rounds": [each for each in rounds if each[0] in allowed]})
            if controller.degree not in allowed:
                controller.move(settings.initial, came_from=None)
            machine._controllers[RoundKind(kind)] = controller
        machine._in_use = snapshot["in_use"] if snapshot["in_use"] in allowed else settings.initial
        machine._switch_s = {degree: seconds for degree, seconds in snapshot["switch_s"] if degree in allowed}
        machine._round = snapshot["round"]
        machine._kind = RoundKind(snapshot["kind"])
        machine._is_open = snapshot["is_open"]
        machine._is_measurable = snapshot["is_measurable"]
        machine._gain = snapshot["gain"]
        return machine
