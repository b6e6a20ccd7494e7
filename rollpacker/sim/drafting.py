"""What draft tokens gain and cost in a modelled engine, and what it reports of them.

    E(g) = 1 + a + a^2 + ... + a^g      tokens that a pass gains per sequence: each of g draft tokens is accepted with
                                        probability a, up to the first that is not, and one more is sampled

Every sequence advances by its mean. Passes under a `DraftRule` are a mix of its usual and of its trial length, and a
token step takes the mix's seconds per token; the KV cache is read once per pass. A pass with prompt tokens in it drafts
nothing. Acceptance is the same for all tokens, prompts and steps, and drafting takes the same time whatever it gains.

Source: Leviathan et al., 2023, equation 1.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rollpacker.core.events import DraftPasses

if TYPE_CHECKING:
    from rollpacker.core.commands import DraftRule
    from rollpacker.sim.costs import PassCosts
    from rollpacker.sim.passes import Stretch


class _Part(NamedTuple):
    """Passes of one draft length among those of a rule."""

    max_sequences: int
    draft_length: int
    passes_per_step: float
    """Of this length, per token step."""
    pass_s: float
    """Without reading what is cached."""
    num_accepted: float
    """Per pass and sequence."""


class Pace(NamedTuple):
    """How fast a batch decodes."""

    step_s: float
    """One token for each sequence, without reading what is cached."""
    passes_per_step: float
    parts: tuple[_Part, ...]
    """Empty without a rule."""


@dataclass(slots=True)
class _Carried:
    """Parts of passes and of accepted tokens that are not counted yet: reports are in whole ones."""

    num_passes: float = 0.0
    num_accepted: float = 0.0


class Drafting:
    """Follows the rules of one engine.

    Args:
        costs: What its passes take.
        acceptance: a, from 0 to below 1.
    """

    def __init__(self, costs: PassCosts, acceptance: float) -> None:
        self._costs = costs
        self._acceptance = acceptance
        self._rules: Sequence[DraftRule] = ()
        self._totals: dict[tuple[int, int], DraftPasses] = {}
        self._carried: dict[tuple[int, int], _Carried] = {}
        self.pace = functools.cache(self._pace)
        """Of a batch of so many sequences."""

    def use(self, rules: Sequence[DraftRule]) -> None:
        """Follow other rules from the next stretch on."""
        self._rules = rules
        self.pace = functools.cache(self._pace)

    def _pace(self, num_sequences: int) -> Pace:
        index = bisect.bisect_left(self._rules, num_sequences, key=lambda rule: rule.max_sequences)
        if index == len(self._rules):
            return Pace(self._costs.pass_s(num_sequences), 1.0, ())
        rule = self._rules[index]
        trial_share = 1 / rule.trial_every if rule.trial_every else 0.0
        mix = [(rule.draft_length, 1 - trial_share), (rule.trial_length, trial_share)]
        tokens_per_pass = sum(share * self._num_gained(length) for length, share in mix)
        parts = tuple(
            _Part(
                max_sequences=rule.max_sequences,
                draft_length=length,
                passes_per_step=share / tokens_per_pass,
                pass_s=self._costs.draft_pass_s(num_sequences, length),
                num_accepted=self._num_gained(length) - 1,
            )
            for length, share in mix
            if share
        )
        step_s = sum(part.passes_per_step * part.pass_s for part in parts)
        return Pace(step_s, sum(part.passes_per_step for part in parts), parts)

    def _num_gained(self, draft_length: int) -> float:
        """E(g)."""
        return sum(self._acceptance**accepted for accepted in range(draft_length + 1))

    def count(self, stretch: Stretch) -> None:
        """Take down the passes of a stretch that is over."""
        pace = stretch.pace
        kv_s_per_pass = 0.0
        if stretch.num_passes:
            kv_s = stretch.duration_s(stretch.num_passes) - stretch.num_passes * pace.step_s
            kv_s_per_pass = kv_s / (stretch.num_passes * pace.passes_per_step)
        for part in pace.parts:
            kind = (part.max_sequences, part.draft_length)
            total = self._totals.get(kind, DraftPasses(*kind, 0, 0, 0, 0, 0.0))
            carried = self._carried.setdefault(kind, _Carried())
            num_passes, carried.num_passes = _whole(carried.num_passes + part.passes_per_step * stretch.num_passes)
            num_sequence_passes = num_passes * stretch.num_sequences
            num_accepted, carried.num_accepted = _whole(carried.num_accepted + num_sequence_passes * part.num_accepted)
            self._totals[kind] = DraftPasses(
                *kind,
                num_passes=total.num_passes + num_passes,
                num_sequence_passes=total.num_sequence_passes + num_sequence_passes,
                num_drafted=total.num_drafted + num_sequence_passes * part.draft_length,
                num_accepted=total.num_accepted + num_accepted,
                time_s=total.time_s + num_passes * (part.pass_s + kv_s_per_pass),
            )

    def totals(self) -> tuple[DraftPasses, ...]:
        """Report all passes under rules so far."""
        return tuple(self._totals.values())


def _whole(number: float) -> tuple[int, float]:
    return int(number), number - int(number)
