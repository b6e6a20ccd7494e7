"""The reference model's limits of test cases, from all runs so far."""

from __future__ import annotations

import math

from rollpacker.core.events import RewardComputed
from rollpacker.core.settings import RewardBudgetSettings


class BudgetModel:
    """The longest run of each test case that passed."""

    def __init__(self, settings: RewardBudgetSettings | None) -> None:
        self._settings = settings
        self.anchors: dict[tuple[str, int], float] = {}

    def note(self, event: RewardComputed) -> None:
        for run in event.case_runs:
            if run.is_passed:
                name = (event.request.prompt.key, run.case)
                self.anchors[name] = max(run.time_s, self.anchors.get(name, 0.0))

    def limits(self, key: str) -> tuple[float, ...]:
        budget = self._settings
        if budget is None:
            return ()
        cases = [case for name, case in self.anchors if name == key]
        limits = []
        for case in range(max(cases, default=-1) + 2):
            anchor = self.anchors.get((key, case))
            scaled = math.inf if anchor is None else float(budget.factor) * anchor
            limits.append(min(max(budget.min_limit_s, scaled), budget.max_limit_s))
        return tuple(limits)
