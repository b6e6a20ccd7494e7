"""How many draft tokens a decode pass verifies: for each batch size as many as gained most tokens per second.

An engine with a drafter has the next tokens of each sequence proposed and verifies them in one pass: it keeps those
that the policy would have sampled, and samples one more. Where a pass is bound by memory, further tokens in it are
nearly free; in a large batch they cost as much as any others, and those that are rejected are wasted. So each range of
batch sizes (powers of two) has a draft length of its own, and 0, plain decoding, where nothing pays.

    fact about a range                                    what follows
    no pass of it was measured yet                        it has the length of the next larger range; the largest has 0
    `num_trial_passes` at another length gained at least  the range has that length, and tries on in the same direction
    `min_gain` times as many tokens per second as the
    usual passes between them
    they gained less                                      the next candidate is tried, half as often

Candidates are two steps and one step away on the ladder of lengths, first those in the direction of the last change,
and plain decoding. One pass in `trial_every` is a trial, between passes of the usual length: both see the same batches
and contexts, and are compared with one another only. A range that has found its length goes on trying others, one pass
in `rarest_trial_every`, and each verdict forgets what led to it: so the length follows a policy that drifts.

All engines draft by the same rules, so their passes count together: those of rollout workers, too, which may be of
another tensor-parallel degree. Each degree of the run's own engines has ranges of its own, which begin with the lengths
of the degree before.
Verification samples what the policy would have, so nothing here changes a response's distribution, only its time.

Invariant: a range compares passes of its length and of its trial's, and of no other.

Source: Leviathan et al., 2023 (verification is lossless). Lengths by batch size as in TurboSpec (Liu et al., 2024); the
paired trials are this project's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from rollpacker.core.commands import BeginRound, DraftRule, UseDraftLengths
from rollpacker.core.errors import ImpossibleEvent, InvariantViolated
from rollpacker.core.events import DraftPasses, DraftsMeasured, RoundMeasured
from rollpacker.core.ids import EngineId
from rollpacker.core.settings import SpeculativeDecodingSettings

_STEPS = (2, 1, -1, -2)
"""On the ladder of lengths, in the order of trials after a change to a longer one; after another, their opposites."""


@dataclass(slots=True, kw_only=True)
class _Gain:
    """What passes of one length gained and took, since the trial began."""

    num_passes: int = 0
    num_tokens: int = 0
    time_s: float = 0.0

    def add(self, passes: DraftPasses) -> None:
        self.num_passes += passes.num_passes
        self.num_tokens += passes.num_sequence_passes + passes.num_accepted
        self.time_s += passes.time_s


@dataclass(slots=True, kw_only=True)
class _Range:
    """What is known about batches of some sizes."""

    length: int = 0
    is_known: bool = False
    """Some pass was measured."""
    is_rising: bool = True
    """The last change was to a longer one."""
    num_failed: int = 0
    """Trials since then."""
    usual: _Gain = field(default_factory=_Gain)
    tried: _Gain = field(default_factory=_Gain)

    def begun_anew(self) -> _Range:
        return _Range(length=self.length, is_known=self.is_known, is_rising=self.is_rising)

    def change(self, length: int) -> None:
        self.is_rising, self.length, self.num_failed = length >= self.length, length, 0

    def forget(self) -> None:
        self.usual, self.tried = _Gain(), _Gain()


class SpeculativeDecoding:
    """Orders draft lengths before a round, from what passes gained in the rounds before it."""

    def __init__(self, settings: SpeculativeDecodingSettings) -> None:
        self._settings = settings
        self._degree: int | None = None
        """Of the engines that have the last order; None without a planner."""
        self._ranges: dict[int | None, dict[int, _Range]] = {}
        """By degree and largest batch, ascending."""
        self._round = -1
        """The open round, or the last one."""
        self._is_open = False
        self._is_measurable = False
        """True from the end of a round until it is measured."""
        self._reported: list[EngineId] = []
        """Engines whose passes of the round are known."""
        self._earlier: dict[EngineId, int | None] = {}
        """Engines that left for others in the midst of the round, and their degree."""

    # The round

    def begin_round(self, command: BeginRound, degree: int | None) -> UseDraftLengths:
        """Give the rules for a round on engines of a degree."""
        self._round, self._is_open, self._is_measurable = command.round, True, False
        self._reported.clear()
        self._earlier.clear()
        return self.order(degree)

    def change_degree(self, degree: int, engines: Sequence[EngineId]) -> UseDraftLengths:
        """Give the rules for the rest of a round, in which others take the place of some engines."""
        self._earlier |= dict.fromkeys(engines, self._degree)
        return self.order(degree)

    def order(self, degree: int | None) -> UseDraftLengths:
        """Give the rules for what engines of a degree generate next; a fresh degree begins where the last one is."""
        if degree not in self._ranges:
            before = self._ranges.get(self._degree, {})
            self._ranges[degree] = {
                size: before[size].begun_anew() if size in before else _Range() for size in self._settings.batch_sizes
            }
        self._degree = degree
        ranges, inherited = self._ranges[degree], 0
        for each in reversed(ranges.values()):
            if not each.is_known:
                each.length = inherited
            inherited = each.length
        return UseDraftLengths(rules=tuple(self._rule(size, each) for size, each in ranges.items()))

    def end_round(self) -> None:
        """Note that the round may be measured."""
        self._is_open, self._is_measurable = False, True

    def learn(self, event: DraftsMeasured) -> None:
        """Take in what an engine's passes gained.

        What comes after the round's measurement or twice changes nothing; passes that no rule of now led to are of no
        use.

        Raises:
            ImpossibleEvent: The round has not ended, or its numbers cannot be; nothing was changed.
        """
        self._validate(event)
        if event.round < self._round or not self._is_measurable or event.engine in self._reported:
            return
        self._reported.append(event.engine)
        ranges = self._ranges[self._earlier.get(event.engine, self._degree)]
        for passes in event.passes:
            each = ranges.get(passes.max_sequences)
            if each is None:
                continue
            if passes.draft_length == each.length:
                each.usual.add(passes)
            elif passes.draft_length == self._trial(each):
                each.tried.add(passes)
            each.is_known = each.is_known or passes.num_passes > 0

    def _validate(self, event: DraftsMeasured) -> None:
        if event.round > self._round or (event.round == self._round and self._is_open):
            raise ImpossibleEvent(
                f"Drafts of round {event.round} were measured before its end.", f"The last round is {self._round}."
            )
        for passes in event.passes:
            is_possible = 0 <= passes.num_accepted <= passes.num_drafted and 0 <= passes.time_s < math.inf
            if not is_possible or not 0 <= passes.num_passes <= passes.num_sequence_passes:
                raise ImpossibleEvent(f"{event.engine} reported {passes}, which cannot have been measured.")
        if len({passes[:2] for passes in event.passes}) < len(event.passes):
            raise ImpossibleEvent(f"{event.engine} reported passes of the same kind twice: {event.passes}")

    def end_measurement(self, event: RoundMeasured) -> None:
        """Give a verdict on every trial that has seen enough: all engines have reported."""
        if event.round != self._round or not self._is_measurable:
            return
        self._is_measurable = False
        degrees = dict.fromkeys((self._degree, *self._earlier.values()))
        for each in [each for degree in degrees for each in self._ranges[degree].values()]:
            usual, tried = each.usual, each.tried
            if tried.num_passes < self._settings.num_trial_passes or not (usual.time_s and tried.time_s):
                continue
            if tried.num_tokens * usual.time_s >= self._settings.min_gain * usual.num_tokens * tried.time_s:
                each.change(self._trial(each))
            else:
                each.num_failed += 1
            each.forget()

    # Trials

    def _rule(self, size: int, each: _Range) -> DraftRule:
        settings = self._settings
        trial_every = min(settings.trial_every << min(each.num_failed, 32), settings.rarest_trial_every)
        return DraftRule(size, each.length, self._trial(each), trial_every)

    def _trial(self, each: _Range) -> int:
        """The length that a range tries now."""
        lengths = self._settings.lengths
        here = lengths.index(each.length)
        steps = _STEPS if each.is_rising else tuple(-step for step in _STEPS)
        near = [lengths[here + step] for step in steps if 0 <= here + step < len(lengths)]
        candidates = near if 0 in (each.length, *near) else [*near, 0]
        return candidates[each.num_failed % len(candidates)]

    # Self-check and snapshot

    def check(self) -> None:
        """Re-derive the machine's invariants.

        Raises:
            InvariantViolated: A length is not allowed, or a range contradicts itself.
        """
        if self._is_open and (self._is_measurable or self._reported):
            raise InvariantViolated(f"Round {self._round} is open and was measured, or may be.")
        for degree, ranges in self._ranges.items():
            for size, each in ranges.items():
                is_measured = each.usual.num_passes or each.tried.num_passes
                is_allowed = size in self._settings.batch_sizes and each.length in self._settings.lengths
                if not is_allowed or (is_measured and not each.is_known):
                    raise InvariantViolated(f"Drafts of batches up to {size} at degree {degree}: {each}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {
            "degree": self._degree,
            "round": self._round,
            "is_open": self._is_open,
            "is_measurable": self._is_measurable,
            "reported": list(self._reported),
            **({"earlier": [[engine, degree] for engine, degree in self._earlier.items()]} if self._earlier else {}),
            "ranges": [
                [degree, size, asdict(each)] for degree, ranges in self._ranges.items() for size, each in ranges.items()
            ],
        }

    @classmethod
    def restore(cls, settings: SpeculativeDecodingSettings, snapshot: dict[str, Any]) -> Self:
        """Rebuild the machine that gave the snapshot; sizes and lengths that are no longer allowed are forgotten."""
        machine = cls(settings)
        machine._degree = snapshot["degree"]
        machine._round = snapshot["round"]
        machine._is_open = snapshot["is_open"]
        machine._is_measurable = snapshot["is_measurable"]
        machine._reported = list(map(EngineId, snapshot["reported"]))
        machine._earlier = {EngineId(engine): degree for engine, degree in snapshot.get("earlier", ())}
        for degree, size, plain in snapshot["ranges"]:
            ranges = machine._ranges.setdefault(degree, {each: _Range() for each in settings.batch_sizes})
            if size in ranges and plain["length"] in settings.lengths:
                gains = {"usual": _Gain(**plain["usual"]), "tried": _Gain(**plain["tried"])}
                ranges[size] = _Range(**{**plain, **gains})
        return machine
