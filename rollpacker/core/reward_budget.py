"""How long each test case of a sandboxed program may run: in proportion to the slowest program that passed it.

    limit(case) = min(max(T_min, lambda * T_anchor), T_max)        T_max where no program has passed the case yet

T_anchor is the longest run of the prompt's case that passed so far, in any round and epoch. So a wrong program that
loops costs little more than the slowest correct one, and not the sandbox's whole limit.

Invariant: a run that passed once would pass again: a limit is at least the longest such run, or T_max.

A late reward teaches too. In a race the slowest correct programs are the late ones, and limits learned without them
would stop correct programs. An anchor only grows, so what is told twice changes nothing.

Source: RollPacker, section 4.3.
"""

from __future__ import annotations

import math
from typing import Any, Self

from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import RewardComputed
from rollpacker.core.settings import RewardBudgetSettings


class RewardBudget:
    """Learns from runs that passed, and gives limits."""

    def __init__(self, settings: RewardBudgetSettings) -> None:
        self._settings = settings
        self._factor = float(settings.factor)  # a product with a fraction takes ten times as long
        self._anchors: dict[str, list[float | None]] = {}
        """Per prompt key and test case, the longest run that passed; None where none has. A list ends with a case that
        some run passed."""

    def validate(self, event: RewardComputed) -> None:
        """Refuse runs that cannot have been.

        Raises:
            ImpossibleEvent: A case or a time is below 0, or a time is not finite.
        """
        for run in event.case_runs:
            if run.case < 0 or not 0 <= run.time_s < math.inf:
                raise ImpossibleEvent(
                    f"Test case {run.case} of {event.request} ran for {run.time_s} s.", "Both are at least 0."
                )

    def learn(self, event: RewardComputed) -> None:
        """Take in the runs of one response; the event has passed `validate`."""
        for run in event.case_runs:
            if run.is_passed:
                anchors = self._anchors.setdefault(event.request.prompt.key, [])
                anchors += [None] * (run.case + 1 - len(anchors))
                anchors[run.case] = max(run.time_s, anchors[run.case] or 0.0)

    def limits(self, key: str) -> tuple[float, ...]:
        """Give the limits of a prompt's cases in seconds, up to the last one that anybody passed, then T_max."""
        settings = self._settings
        known = (
            settings.max_limit_s
            if anchor is None
            else min(max(settings.min_limit_s, self._factor * anchor), settings.max_limit_s)
            for anchor in self._anchors.get(key, ())
        )
        return (*known, settings.max_limit_s)

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: A limit would stop a run that has passed, or a prompt is known that no program passed
                anything.
        """
        for key, anchors in self._anchors.items():
            for anchor, limit in zip(anchors, self.limits(key), strict=False):
                if limit < min(anchor or 0.0, self._settings.max_limit_s):
                    raise InvariantViolated(f"A case of {key!r} took {anchor} s to pass, and may take {limit} s.")
            if not anchors or anchors[-1] is None:
                raise InvariantViolated(f"The anchors of {key!r} end with a case that no program passed: {anchors}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {"anchors": {key: list(anchors) for key, anchors in self._anchors.items()}}

    @classmethod
    def restore(cls, settings: RewardBudgetSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot."""
        machine = cls(settings)
        machine._anchors = {key: list(anchors) for key, anchors in snapshot["anchors"].items()}
        return machine
