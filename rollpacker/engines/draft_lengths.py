"""How many draft tokens a decode pass verifies by the rules in force, and what such passes cost and gained.

Invariant: a pass is counted under the rule and the draft length that it was begun with; passes of larger batches than
the last rule's are not counted.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rollpacker.core.commands import DraftRule
from rollpacker.core.events import DraftPasses


class PassPlan(NamedTuple):
    """What a pass does, and under which rule."""

    max_sequences: int
    draft_length: int


@dataclass(slots=True)
class DraftLengths:
    """The rules of one engine, and its passes under them."""

    rules: Sequence[DraftRule] = ()
    _num_passes: dict[int, int] = field(default_factory=dict)
    """By `DraftRule.max_sequences`."""
    _totals: dict[PassPlan, DraftPasses] = field(default_factory=dict)

    def use(self, rules: Sequence[DraftRule]) -> None:
        """Follow other rules from the next pass on; no rules is plain decoding."""
        self.rules = tuple(rules)

    def next_pass(self, num_sequences: int) -> PassPlan | None:
        """Plan the next pass, over so many sequences; None where no rule holds."""
        for rule in self.rules:
            if num_sequences <= rule.max_sequences:
                num_passes = self._num_passes[rule.max_sequences] = self._num_passes.get(rule.max_sequences, 0) + 1
                is_trial = rule.trial_every and num_passes % rule.trial_every == 0
                return PassPlan(rule.max_sequences, rule.trial_length if is_trial else rule.draft_length)
        return None

    def count(self, plan: PassPlan, num_sequences: int, num_drafted: int, num_accepted: int, time_s: float) -> None:
        """Add a pass to the totals."""
        self._add(plan, 1, num_sequences, num_drafted, num_accepted, time_s)

    def charge(self, plan: PassPlan, time_s: float) -> None:
        """Add time that earlier passes of a plan have caused."""
        self._add(plan, 0, 0, 0, 0, time_s)

    def totals(self) -> tuple[DraftPasses, ...]:
        """What passes under each rule and length have cost and gained since the engine began."""
        return tuple(total for _, total in sorted(self._totals.items()))

    def _add(self, plan: PassPlan, *growth: float) -> None:
        before = self._totals.get(plan, DraftPasses(*plan, 0, 0, 0, 0, 0.0))
        self._totals[plan] = DraftPasses(*plan, *map(operator.add, before[2:], growth))
