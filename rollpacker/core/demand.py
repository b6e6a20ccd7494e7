"""How many rollout workers a run could use, learned from its steps.

With W the engine-seconds of rollout in a step, counted in the speed of an engine on the trainer's allocation (of the
configured degree, as in `core.seeding`), t the seconds of training and s the relative speed of a worker, more than
`W / (s t)` workers have nothing to do: the rollout is over before the trainer is. The three are exponential means over
steps. Where the trainer has GPUs of its own, its allocation's engines generate while it trains, and W is without what
they do in that time. Where rollout and training take turns, each worker shortens the step, and all are of use.

The wish follows that number by one worker a step, upwards at once and downwards after `STEPS_OF_SURPLUS` steps in a row
that could use fewer. It begins at `max_workers`: the first steps measure whether all of them are of use.

Invariant: the wish is within the settings' bounds, and a step changes it by one at most.
Source: RLBoost (arXiv 2510.19225), section 4.1, "worker cap".
"""

from __future__ import annotations

import math
from typing import Any, Final, Self

from rollpacker.core.commands import WishWorkers
from rollpacker.core.elastic_settings import ElasticSettings
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import StepMeasured

STEPS_OF_SURPLUS: Final = 3
"""Before a worker is given back: rounds differ in length, and to get it again takes minutes."""
WEIGHT: Final = 0.3
"""Of the last step in a mean: about six steps count."""


class Demand:
    """Learns what a step needs, and wishes for workers."""

    def __init__(self, settings: ElasticSettings) -> None:
        self._settings = settings
        self._step = -1
        """The last one that was measured."""
        self._rollout_s: float | None = None
        """W; None before the first step."""
        self._train_s: float | None = None
        """t; the same."""
        self._speed = 1.0
        """s, per engine; 1 until a step has measured both kinds."""
        self._wish = settings.max_workers
        self._num_surplus = 0
        """Steps in a row that could use fewer."""

    @property
    def wish(self) -> WishWorkers:
        """So many are asked for."""
        return WishWorkers(num_workers=self._wish)

    def rollout_s(self, event: StepMeasured) -> float:
        """Engine-seconds of rollout in a step, in the speed of a local engine."""
        return event.local_engine_s + self._speed * event.member_engine_s

    @property
    def speed(self) -> float:
        """Of an engine of a worker, relative to a local one."""
        return self._speed

    def measure(self, event: StepMeasured, engines_per_worker: float, num_local: float) -> tuple[WishWorkers, ...]:
        """Learn from a step, and change the wish if it says so; one that was measured before changes nothing.

        Args:
            event: The measurement.
            engines_per_worker: The mean over the workers that are in; 1 where none is.
            num_local: Engines on the trainer's allocation, if all had the configured degree.

        Raises:
            ImpossibleEvent: A number is below 0; nothing was changed.
        """
        numbers = (event.train_s, event.local_engine_s, event.member_engine_s, event.local_tokens, event.member_tokens)
        if not all(0 <= number < math.inf for number in (*numbers, event.trainer_idle_s, event.fleet_idle_s)):
            raise ImpossibleEvent(f"{event} has a number below 0, or one that is none.")
        if event.step <= self._step:
            return ()
        self._step = event.step
        if min(numbers[1:]) > 0:
            rates = event.member_tokens / event.member_engine_s, event.local_tokens / event.local_engine_s
            self._speed = _mean(self._speed, rates[0] / rates[1])
        beside_s = min(event.local_engine_s, num_local * event.train_s) if self._settings.is_apart else 0.0
        self._rollout_s = _mean(self._rollout_s, self.rollout_s(event) - beside_s)
        self._train_s = _mean(self._train_s, event.train_s)
        return self._change(self._num_useful(engines_per_worker))

    def _num_useful(self, engines_per_worker: float) -> int:
        least, most = self._settings.min_workers, self._settings.max_workers
        assert self._rollout_s is not None
        worker_s = self._speed * engines_per_worker * (self._train_s or 0.0)
        if not self._settings.overlaps or self._rollout_s >= most * worker_s:
            return most
        return max(least, math.ceil(self._rollout_s / worker_s))

    def _change(self, num_useful: int) -> tuple[WishWorkers, ...]:
        before = self._wish
        self._num_surplus = self._num_surplus + 1 if num_useful < before else 0
        if num_useful > before:
            self._wish += 1
        elif self._num_surplus == STEPS_OF_SURPLUS:
            self._wish, self._num_surplus = before - 1, 0
        return () if self._wish == before else (self.wish,)

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: The wish is out of bounds.
        """
        if not self._settings.min_workers <= self._wish <= self._settings.max_workers:
            raise InvariantViolated(f"{self._wish} workers are wanted.")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data."""
        return {
            "step": self._step,
            "rollout_s": self._rollout_s,
            "train_s": self._train_s,
            "speed": self._speed,
            "wish": self._wish,
            "num_surplus": self._num_surplus,
        }

    @classmethod
    def restore(cls, settings: ElasticSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; the settings may be others between two attempts."""
        machine = cls(settings)
        machine._step = snapshot["step"]
        machine._rollout_s, machine._train_s = snapshot["rollout_s"], snapshot["train_s"]
        machine._speed = snapshot["speed"]
        machine._wish = min(max(snapshot["wish"], settings.min_workers), settings.max_workers)
        machine._num_surplus = snapshot["num_surplus"]
        return machine


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (1 - WEIGHT) * before + WEIGHT * now
