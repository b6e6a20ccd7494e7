"""Draft lengths, learned from an engine whose passes take what a roofline says."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker.core.commands import BeginRound, RoundKind, UseDraftLengths
from rollpacker.core.errors import ImpossibleEvent
from rollpacker.core.events import DraftPasses, DraftsMeasured, RoundMeasured
from rollpacker.core.ids import EngineId
from rollpacker.core.settings import SpeculativeDecodingSettings
from rollpacker.core.speculative_decoding import SpeculativeDecoding

DRAFTS = SpeculativeDecodingSettings(max_sequences=64, num_trial_passes=16)
E0 = EngineId("engine-0")
MILLION = 10**6
A_ROUND = {64: 128, 32: 256, 16: 512, 8: 512, 4: 512, 2: 1024, 1: 2048}
"""Passes by batch size, as a round without drafts makes them."""


@dataclass(frozen=True, kw_only=True)
class Roofline:
    """What passes take and gain."""

    acceptance: float
    """Of each draft token."""
    free_tokens: float = 64
    """Of a pass, until it takes longer."""
    draft_s: float = 0.1
    """Of a pass with drafts; one of few tokens takes 1 without."""

    def pass_s(self, num_sequences: int, length: int) -> float:
        return max(1.0, num_sequences * (1 + length) / self.free_tokens) + (self.draft_s if length else 0.0)

    def num_accepted(self, length: int) -> float:
        """Per sequence and pass."""
        return sum(self.acceptance**number for number in range(1, length + 1))

    def rate(self, num_sequences: int, length: int) -> float:
        """Tokens per second."""
        return num_sequences * (1 + self.num_accepted(length)) / self.pass_s(num_sequences, length)

    def best(self, num_sequences: int) -> float:
        return max(self.rate(num_sequences, length) for length in DRAFTS.lengths)


class Rounds:
    """Decodes by the machine's rules, and reports."""

    def __init__(
        self, drafts: SpeculativeDecodingSettings = DRAFTS, *, is_restored: bool = False, chance: float = 0.0
    ) -> None:
        self.settings = drafts
        self.machine = SpeculativeDecoding(drafts)
        self.number = -1
        self.num_passes: Counter[int] = Counter()
        """Over all rounds, by batch size."""
        self.usual_loss_s = 0.0
        """By which usual passes took longer than plain ones for as many tokens."""
        self.num_trials = 0
        self.rng = random.Random(0)
        self.chance = chance
        """By which share a pass's time varies; above 0, what it accepts varies too."""
        self._is_restored = is_restored

    def play(self, engine: Roofline, batches: dict[int, int] = A_ROUND, degree: int | None = None) -> dict[int, int]:
        """Play a round; gives the usual length that it had for each batch size."""
        order = self.begin(degree)
        report = []
        for num_sequences, num_passes in batches.items():
            rule = next(rule for rule in order.rules if num_sequences <= rule.max_sequences)
            before = self.num_passes[rule.max_sequences]
            self.num_passes[rule.max_sequences] += num_passes
            num_trials = (before + num_passes) // rule.trial_every - before // rule.trial_every
            self.num_trials += num_trials
            usual = self.decoded(engine, num_sequences, rule.max_sequences, rule.draft_length, num_passes - num_trials)
            report += [usual, self.decoded(engine, num_sequences, rule.max_sequences, rule.trial_length, num_trials)]
            num_tokens = num_sequences * (1 + engine.num_accepted(rule.draft_length)) * usual.num_passes
            self.usual_loss_s += usual.time_s - num_tokens / engine.rate(num_sequences, 0)
        self.report(E0, report)
        self.end()
        return {rule.max_sequences: rule.draft_length for rule in order.rules}

    def decoded(self, engine: Roofline, num_sequences: int, size: int, length: int, num_passes: int) -> DraftPasses:
        """Count passes of one length; a million times as many sequences, so that whole numbers say what is accepted."""
        num_all = num_sequences * num_passes * MILLION
        accepted = num_all * engine.num_accepted(length)
        time_s = num_passes * engine.pass_s(num_sequences, length)
        if self.chance:
            accepted += self.rng.gauss(0, length / 2 * (num_sequences * num_passes) ** 0.5) * MILLION
            time_s *= 1 + self.rng.gauss(0, self.chance / max(num_passes, 1) ** 0.5)
        num_accepted = min(max(round(accepted), 0), num_all * length)
        return DraftPasses(size, length, num_passes, num_all, num_all * length, num_accepted, max(time_s, 0.0))

    def begin(self, degree: int | None = None) -> UseDraftLengths:
        self.number += 1
        if self._is_restored:
            self.machine = SpeculativeDecoding.restore(self.settings, json.loads(json.dumps(self.machine.snapshot())))
        return self.machine.begin_round(begin_round(self.number), degree)

    def report(self, engine: EngineId, passes: Sequence[DraftPasses]) -> None:
        if self.machine._is_open:
            self.machine.end_round()
        self.machine.learn(DraftsMeasured(round=self.number, engine=engine, passes=tuple(passes)))
        self.machine.check()

    def end(self) -> None:
        measured = RoundMeasured(round=self.number, num_preemptions=0, rollout_time_s=1.0, num_tokens=1)
        self.machine.end_measurement(measured)
        self.machine.check()


def begin_round(number: int) -> BeginRound:
    return BeginRound(
        round=number,
        step=number,
        kind=RoundKind.PLAIN,
        num_prompts_launched=1,
        num_prompts_needed=1,
        num_responses_launched=1,
        num_responses_needed=1,
    )


@pytest.mark.parametrize("acceptance", [0.3, 0.45, 0.6, 0.72, 0.9])
@pytest.mark.parametrize("free_tokens", [4, 64, 512])
@pytest.mark.parametrize("draft_s", [0.0, 0.3])
def test_every_batch_size_comes_to_a_length_that_gains_nearly_most(acceptance, free_tokens, draft_s) -> None:
    engine = Roofline(acceptance=acceptance, free_tokens=free_tokens, draft_s=draft_s)
    rounds = Rounds()
    for _ in range(40):
        lengths = rounds.play(engine)
    rates = {size: engine.rate(size, length) / engine.best(size) for size, length in lengths.items()}
    assert min(rates.values()) > 0.95, lengths


def test_small_batches_get_long_drafts_and_large_ones_none() -> None:
    rounds = Rounds()
    for _ in range(40):
        lengths = rounds.play(Roofline(acceptance=0.7, free_tokens=16))
    assert lengths[64] == lengths[32] == 0
    assert lengths[1] >= 4
    assert list(lengths.values()) == sorted(lengths.values(), reverse=True)


def test_where_nothing_pays_it_is_off_and_finds_out_when_that_changes() -> None:
    rounds = Rounds()
    for _ in range(10):
        assert set(rounds.play(Roofline(acceptance=0.0)).values()) == {0}
    assert {rule.trial_every for rule in rounds.begin().rules} == {DRAFTS.rarest_trial_every}
    for _ in range(40):
        lengths = rounds.play(Roofline(acceptance=0.7, free_tokens=512))
    assert min(lengths.values()) >= 3


def test_a_drafter_that_becomes_worse_is_used_less() -> None:
    rounds = Rounds()
    before = [rounds.play(Roofline(acceptance=0.8, free_tokens=512)) for _ in range(30)][-1]
    after = [rounds.play(Roofline(acceptance=0.2, free_tokens=512, draft_s=0.3)) for _ in range(60)][-1]
    assert min(before.values()) >= 3
    assert max(after.values()) <= 1


@settings(max_examples=60, deadline=None)
@given(
    acceptance=st.floats(0, 0.95),
    free_tokens=st.sampled_from([1, 8, 64, 1000]),
    draft_s=st.floats(0, 1),
    num_rounds=st.integers(1, 12),
)
def test_only_trials_are_slower_than_plain_decoding_and_at_most_one_pass_in_eight_is_one(
    acceptance, free_tokens, draft_s, num_rounds
) -> None:
    engine = Roofline(acceptance=acceptance, free_tokens=free_tokens, draft_s=draft_s)
    rounds = Rounds()
    for _ in range(num_rounds):
        rounds.play(engine)
    assert rounds.usual_loss_s <= 1e-6
    assert 0 < rounds.num_trials <= rounds.num_passes.total() / DRAFTS.trial_every


def test_trials_become_rare_once_the_length_is_found() -> None:
    rounds = Rounds()
    for _ in range(40):
        rounds.play(Roofline(acceptance=0.6))
    before, of_before = rounds.num_trials, rounds.num_passes.total()
    for _ in range(10):
        rounds.play(Roofline(acceptance=0.6))
    assert (rounds.num_trials - before) / (rounds.num_passes.total() - of_before) < 1 / 40


def test_chance_does_not_lead_it_astray() -> None:
    engine = Roofline(acceptance=0.6, free_tokens=32)
    rounds = Rounds(replace(DRAFTS, num_trial_passes=64), chance=0.3)
    played = [rounds.play(engine) for _ in range(80)][20:]
    shares = [engine.rate(size, lengths[size]) / engine.best(size) for lengths in played for size in lengths]
    assert sum(shares) / len(shares) > 0.95


def test_a_batch_size_that_was_never_seen_drafts_as_the_next_larger_one() -> None:
    rounds = Rounds()
    large = {size: num_passes for size, num_passes in A_ROUND.items() if size >= 16}
    for _ in range(20):
        lengths = rounds.play(Roofline(acceptance=0.8, free_tokens=512), large)
    assert lengths[16] > 0
    assert {lengths[size] for size in (1, 2, 4, 8)} == {lengths[16]}


def test_engines_of_a_degree_count_together_and_each_degree_learns_for_itself() -> None:
    rounds = Rounds(replace(DRAFTS, max_sequences=1))
    usual, tried = DraftPasses(1, 0, 100, 100, 0, 0, 100.0), DraftPasses(1, 2, 8, 8, 16, 12, 9.0)
    rounds.begin(1)
    rounds.report(E0, (usual, tried))
    rounds.end()
    assert rounds.begin(1).rules[0].draft_length == 0, "eight trials are too few"
    for engine in (E0, EngineId("engine-1")):
        rounds.report(engine, (usual, tried))
    rounds.end()
    assert rounds.begin(1).rules[0].draft_length == 2
    rounds.report(E0, ())
    assert rounds.begin(2).rules[0].draft_length == 2, "it begins with that of the degree before"
    slower = DraftPasses(1, 2, 100, 100, 200, 0, 200.0), DraftPasses(1, 0, 100, 100, 0, 0, 100.0)
    for _ in range(4):  # the candidates from 2 are 4, 3, 1, 0
        rounds.report(E0, slower)
        rounds.end()
        rounds.begin(2)
    assert rounds.begin(1).rules[0].draft_length == 2


def test_reports_that_come_twice_or_too_late_change_nothing() -> None:
    rounds = Rounds()
    rounds.begin()
    report = [DraftPasses(1, 0, 5, 5, 0, 0, 5.0)]
    rounds.report(E0, report)
    before = rounds.machine.snapshot()
    rounds.report(E0, report)
    assert rounds.machine.snapshot() == before
    rounds.end()
    before = rounds.machine.snapshot()
    rounds.report(EngineId("engine-1"), report)
    rounds.end()
    assert rounds.machine.snapshot() == before


@pytest.mark.parametrize(
    "passes",
    [
        (DraftPasses(1, 2, 1, 1, 2, 3, 1.0),),
        (DraftPasses(1, 2, 2, 1, 2, 1, 1.0),),
        (DraftPasses(1, 2, 1, 1, 2, -1, 1.0),),
        (DraftPasses(1, 2, 1, 1, 2, 1, float("inf")),),
        (DraftPasses(1, 2, 1, 1, 2, 1, 1.0), DraftPasses(1, 2, 1, 1, 2, 1, 1.0)),
    ],
)
def test_what_cannot_have_been_measured_is_refused(passes) -> None:
    rounds = Rounds()
    rounds.begin()
    with pytest.raises(ImpossibleEvent, match="before its end"):
        rounds.machine.learn(DraftsMeasured(round=0, engine=E0, passes=()))
    rounds.machine.end_round()
    before = rounds.machine.snapshot()
    with pytest.raises(ImpossibleEvent, match="engine-0 reported"):
        rounds.machine.learn(DraftsMeasured(round=0, engine=E0, passes=passes))
    assert rounds.machine.snapshot() == before


def test_a_machine_that_is_restored_before_every_round_orders_the_same() -> None:
    engine = Roofline(acceptance=0.6, free_tokens=32)
    unbroken, restored = Rounds(), Rounds(is_restored=True)
    for number in range(25):
        degree = None if number < 8 else number % 2 + 1
        assert unbroken.play(engine, degree=degree) == restored.play(engine, degree=degree)
    assert unbroken.machine.snapshot() == restored.machine.snapshot()


def test_lengths_that_are_no_longer_allowed_are_forgotten() -> None:
    rounds = Rounds()
    for _ in range(20):
        rounds.play(Roofline(acceptance=0.9, free_tokens=512))
    fewer = replace(DRAFTS, lengths=(0, 1, 2), max_sequences=8)
    machine = SpeculativeDecoding.restore(fewer, rounds.machine.snapshot())
    machine.check()
    rules = machine.begin_round(begin_round(99), None).rules
    assert [rule.max_sequences for rule in rules] == [1, 2, 4, 8]
    assert {rule.draft_length for rule in rules} <= {0, 1, 2}
