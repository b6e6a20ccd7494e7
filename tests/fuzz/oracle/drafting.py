"""What draft lengths should be ordered, computed from all orders and reports so far."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rollpacker.core.commands import Command, DraftRule, UseDraftLengths
from rollpacker.core.events import DraftPasses, DraftsMeasured
from rollpacker.core.settings import SpeculativeDecodingSettings


@dataclass(slots=True, kw_only=True)
class DraftedRound:
    """The rules of a round, and what engines said of it."""

    degree: int | None
    rules: tuple[DraftRule, ...]
    reports: list[DraftsMeasured] = field(default_factory=list)
    is_measured: bool = False
    """Its `RoundMeasured` has come."""


class DraftModel:
    """All rounds so far."""

    def __init__(self, settings: SpeculativeDecodingSettings | None) -> None:
        self._settings = settings
        self.rounds: list[DraftedRound] = []
        self.is_measurable = False

    def end_round(self) -> None:
        self.is_measurable = self._settings is not None

    def is_late(self, event: DraftsMeasured) -> bool:
        is_over = not self.is_measurable or event.round < len(self.rounds) - 1
        return is_over or any(event.engine == report.engine for report in self.rounds[-1].reports)

    def note(self, event: DraftsMeasured) -> None:
        self.rounds[-1].reports.append(event)

    def end_measurement(self) -> None:
        if self.is_measurable:
            self.is_measurable, self.rounds[-1].is_measured = False, True

    def check_order(self, commands: Iterable[Command], degree: int | None) -> None:
        """Check the rules that come with a round's begin."""
        orders = [command for command in commands if isinstance(command, UseDraftLengths)]
        if self._settings is None:
            assert not orders, "draft lengths are ordered without speculative decoding"
            return
        expected = rules_after(self.rounds, degree, self._settings)
        assert orders == [UseDraftLengths(rules=expected)], f"other draft lengths than {self.rounds} say"
        self.is_measurable = False
        self.rounds.append(DraftedRound(degree=degree, rules=expected))


def rules_after(
    rounds: Sequence[DraftedRound], degree: int | None, drafts: SpeculativeDecodingSettings
) -> tuple[DraftRule, ...]:
    """Work out the rules of the next round, each range from what was ordered for it before."""
    rules: list[DraftRule] = []
    for index, size in reversed([*enumerate(sizes_up_to(drafts.max_sequences))]):
        here = [each for each in rounds if each.degree == degree]
        if here:
            is_known = is_seen(rounds, degree, size)
            length, rises, failures = state_after(here, index, size, drafts)
        elif rounds:  # as the degree of before would go on
            before = rounds[-1].degree
            is_known = is_seen(rounds, before, size)
            length, rises, _ = state_after([each for each in rounds if each.degree == before], index, size, drafts)
            failures = 0
        else:
            is_known, length, rises, failures = False, 0, True, 0
        if not is_known:
            length = rules[-1].draft_length if rules else 0
        pause = min(drafts.trial_every * 2**failures, drafts.rarest_trial_every)
        rules.append(DraftRule(size, length, trial_of(length, rises, failures, drafts.lengths), pause))
    return tuple(reversed(rules))


def sizes_up_to(most: int) -> list[int]:
    sizes = [1]
    while sizes[-1] < most:
        sizes.append(2 * sizes[-1])
    return sizes


def is_seen(rounds: Sequence[DraftedRound], degree: int | None, size: int) -> bool:
    """Whether some pass of a range was reported on a degree, or on the one that it began after."""
    degrees = [each.degree for each in rounds]
    if degree not in degrees:
        return False
    first = degrees.index(degree)
    own = [passes for each in rounds if each.degree == degree for passes in passes_of(each, size)]
    return any(passes.num_passes for passes in own) or (first > 0 and is_seen(rounds[:first], degrees[first - 1], size))


def passes_of(drafted: DraftedRound, size: int) -> list[DraftPasses]:
    return [passes for report in drafted.reports for passes in report.passes if passes.max_sequences == size]


def state_after(
    rounds: Sequence[DraftedRound], index: int, size: int, drafts: SpeculativeDecodingSettings
) -> tuple[int, bool, int]:
    """A range's length, whether its last change was to a longer one, and the trials that failed since."""
    length, rises, failures = rounds[0].rules[index].draft_length, rounds_rise(rounds[0].rules[index], drafts), 0
    evidence: list[DraftPasses] = []
    for each in rounds:
        rule = each.rules[index]
        if rule.draft_length != length:  # it took that of the larger range
            length = rule.draft_length
        evidence += [
            passes for passes in passes_of(each, size) if passes.draft_length in (rule.draft_length, rule.trial_length)
        ]
        if not each.is_measured:
            continue
        usual = [passes for passes in evidence if passes.draft_length == length]
        tried = [passes for passes in evidence if passes.draft_length == rule.trial_length]
        is_timed = sum(passes.time_s for passes in usual) > 0 and sum(passes.time_s for passes in tried) > 0
        if sum(passes.num_passes for passes in tried) < drafts.num_trial_passes or not is_timed:
            continue
        evidence = []
        if tokens(tried) * seconds(usual) >= drafts.min_gain * tokens(usual) * seconds(tried):
            length, rises, failures = rule.trial_length, rule.trial_length >= length, 0
        else:
            failures += 1
    return length, rises, failures


def rounds_rise(rule: DraftRule, drafts: SpeculativeDecodingSettings) -> bool:
    """In which direction a range went on when its degree began, by what it tries first."""
    rising = trial_of(rule.draft_length, True, 0, drafts.lengths)
    return rule.trial_length == rising


def tokens(passes: Iterable[DraftPasses]) -> int:
    return sum(each.num_sequence_passes + each.num_accepted for each in passes)


def seconds(passes: Iterable[DraftPasses]) -> float:
    return sum(each.time_s for each in passes)


def trial_of(length: int, rises: bool, failures: int, lengths: Sequence[int]) -> int:
    """What a range tries after so many failures."""
    here = lengths.index(length)
    offsets = (2, 1, -1, -2) if rises else (-2, -1, 1, 2)
    candidates = [lengths[here + offset] for offset in offsets if 0 <= here + offset < len(lengths)]
    if length and 0 not in candidates:
        candidates.append(0)
    return candidates[failures % len(candidates)]
