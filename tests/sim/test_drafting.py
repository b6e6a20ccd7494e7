"""Draft tokens in modelled engines: what a pass gains and takes, and what the engine reports of it."""

from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.commands import DraftRule
from rollpacker.core.events import DraftsMeasured
from rollpacker.metrics.event_log import attempt_path, read_event_log
from rollpacker.metrics.tables import read_frame
from rollpacker.sim.decoder import Decoder
from tests.sim.clusters import engine_costs, generation, run_out
from tests.sim.composed import small

ALWAYS_FOUR = (DraftRule(64, 4, 0, 0),)
COSTS = engine_costs(10_000, step_overhead_s=0.01)
A = 0.6
E4 = (1 - A**5) / (1 - A)
"""Tokens per pass and sequence."""


def decoded(rules, *, lengths=(1001,), acceptance=A) -> tuple[Decoder, float]:
    """Decode responses of these lengths; gives the decoder and the time without prefill."""
    decoder = Decoder(COSTS, max_num_seqs=64, draft_acceptance=acceptance)
    decoder.drafting.use(rules)
    decoder.add([generation(number, length=length) for number, length in enumerate(lengths)], now=0.0)
    decoder.advance()
    began_at = decoder.next_at_s
    assert began_at is not None
    return decoder, max(ended_at for ended_at, *_ in run_out(decoder)) - began_at


def test_a_response_takes_as_many_passes_less_as_each_gains_more_tokens():
    _, plain_s = decoded(())
    decoder, drafted_s = decoded(ALWAYS_FOUR)
    assert plain_s / drafted_s == pytest.approx(E4 * COSTS.pass_s(1) / COSTS.draft_pass_s(1, 4), rel=0.01)
    [passes] = decoder.drafting.totals()
    assert passes.num_passes == pytest.approx(1000 / E4, abs=1)
    assert passes.num_drafted == 4 * passes.num_passes == 4 * passes.num_sequence_passes
    assert passes.num_accepted / passes.num_passes == pytest.approx(E4 - 1, rel=0.01)
    assert passes.time_s == pytest.approx(drafted_s, rel=0.01)


def test_passes_are_counted_by_the_rule_of_their_batch_size_and_trials_apart():
    rules = (DraftRule(1, 8, 4, 10), DraftRule(2, 2, 3, 4), DraftRule(4, 0, 1, 8))
    decoder, _ = decoded(rules, lengths=(1000, 2000, 3000, 4000, 5000, 6000))
    by_kind = {(passes.max_sequences, passes.draft_length): passes for passes in decoder.drafting.totals()}
    assert list(by_kind) == [(4, 0), (4, 1), (2, 2), (2, 3), (1, 8), (1, 4)], "batches of 6 and 5 follow no rule"
    assert by_kind[1, 8].num_passes / by_kind[1, 4].num_passes == pytest.approx(9, rel=0.1)
    assert by_kind[2, 2].num_passes / by_kind[2, 3].num_passes == pytest.approx(3, rel=0.05)
    assert by_kind[4, 0].num_accepted == 0
    assert by_kind[4, 0].num_sequence_passes / by_kind[4, 0].num_passes == pytest.approx(3.5, rel=0.02)


def test_drafts_that_are_never_accepted_only_cost():
    _, plain_s = decoded(())
    decoder, drafted_s = decoded(ALWAYS_FOUR, acceptance=0.0)
    assert drafted_s > plain_s
    assert {passes.num_accepted for passes in decoder.drafting.totals()} == {0}


def test_rules_that_draft_nothing_take_the_time_of_no_rules():
    assert decoded((DraftRule(64, 0, 4, 0),))[1] == decoded(())[1]


RUN = small("system=verl", "run.num_steps=6", "engine.num_engines=4", "trainer.tensor_parallel=1")


def run(run_dir: Path, *words: str):
    pipeline.run(compose([*RUN, f"run.dir={run_dir}", *words]))
    return read_frame(run_dir, "steps")


def test_a_run_comes_to_drafts_that_shorten_its_rollouts_and_trains_the_same(tmp_path):
    plain = run(tmp_path / "plain")
    drafted = run(tmp_path / "drafted", "system.speculative_decoding=true")
    ratios = drafted["rollout_time_s"] / plain["rollout_time_s"]
    assert ratios.iloc[0] < 1.05, "the first round only tries"
    assert ratios.iloc[-1] < 0.85
    assert list(drafted["tokens_trained"]) == list(plain["tokens_trained"])
    assert plain["tokens_per_sequence_pass"].isna().all()
    assert set(plain["draft_tokens_verified"]) == {0}
    assert drafted["tokens_per_sequence_pass"].between(1, 2.5).all()
    assert drafted["tokens_per_sequence_pass"].iloc[-1] > drafted["tokens_per_sequence_pass"].iloc[0]
    assert (drafted["draft_tokens_accepted"] < drafted["draft_tokens_verified"]).all()


def test_drafts_that_are_never_accepted_cost_a_run_next_to_nothing(tmp_path):
    plain = run(tmp_path / "plain")
    words = ["system.speculative_decoding=true", "workload.draft_acceptance=0"]
    drafted = run(tmp_path / "drafted", *words)
    assert drafted["rollout_time_s"].sum() < 1.03 * plain["rollout_time_s"].sum()
    records = read_event_log(attempt_path(tmp_path / "drafted", 0)).records
    assert any(isinstance(record.event, DraftsMeasured) for record in records)
