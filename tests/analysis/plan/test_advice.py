"""What is suggested, from made-up tables: where tail batching pays, where it does not, and where memory is short."""

import pandas as pd
import pytest

from rollpacker.analysis.plan.advice import Advice, add_speedups, advise, speedup_by_rho, summarise
from tests.analysis.plan.tables import outcomes


def with_speedups(*trials: pd.DataFrame) -> pd.DataFrame:
    return add_speedups(pd.concat(trials, ignore_index=True), "verl")


def advice(*trials: pd.DataFrame) -> Advice:
    return advise(summarise(with_speedups(*trials)), baseline="verl", num_gpus=32, rho=0.3)


def test_a_gain_above_its_spread_pays_and_says_how_much():
    given = advice(outcomes("verl", 200, 210, 190), outcomes("rollpacker", 100, 105, 95, eta=1.25))
    assert given.verdict == "pays"
    assert "2.00 x" in given.summary
    assert "889 GPU·h saved per 1,000 steps" in given.summary  # 100 s x 1,000 x 32 GPUs / 3,600
    assert list(given.reasons) == ["eta 1.25", "TP 2", "GPUs 32"]


def test_a_gain_within_its_spread_does_not_pay_and_plain_batching_is_suggested():
    given = advice(outcomes("verl", 100, 120, 90), outcomes("rollpacker", 98, 95, 102, eta=1.25))
    assert given.verdict == "within the spread"
    assert "does not pay" in given.summary
    assert given.summary.endswith("Run verl.")
    assert list(given.reasons) == ["TP 2", "GPUs 32"]


def test_a_loss_is_called_a_loss():
    given = advice(outcomes("verl", 100, 101, 99), outcomes("rollpacker", 120, 121, 119, eta=1.25))
    assert given.verdict == "loses"
    assert given.summary.endswith("Run verl.")


@pytest.mark.parametrize(
    ("without_race", "tail", "verdict", "end"),
    [
        ((135, 136), (137, 138), "pays", " rlhfuse has 1.48 x without a race. Run rlhfuse."),
        ((135, 136), (130, 131), "pays", " saved per 1,000 steps."),
        ((135, 136), (220, 221), "loses", " rlhfuse has 1.48 x without a race. Run rlhfuse."),
        ((135, 136), (150, 300), "within the spread", " rlhfuse has 1.48 x without a race. Run rlhfuse."),
        ((90, 300), (137, 138), "pays", " saved per 1,000 steps."),
        ((90, 300), (220, 221), "loses", ". Run verl."),
        ((210, 211), (220, 221), "loses", ". Run verl."),
    ],
)
def test_a_system_that_gains_more_without_a_race_is_suggested(without_race, tail, verdict, end):
    given = advice(outcomes("verl", 200, 201), outcomes("rlhfuse", *without_race), outcomes("tail", *tail, eta=1.25))
    assert given.verdict == verdict
    assert given.summary.endswith(end)
    assert ("eta 1.25" in given.reasons) is ("saved" in end)


def test_a_degree_that_one_lucky_seed_has_tried_is_not_what_is_compared_with():
    plain = outcomes("verl", 200, 210, 190), outcomes("verl", 180, degree=4)
    given = advice(*plain, outcomes("rollpacker", 100, 105, 95, eta=1.25))
    assert given.verdict == "pays"
    assert "2.00 x" in given.summary


def test_one_seed_decides_nothing():
    given = advice(outcomes("verl", 200), outcomes("rollpacker", 100, eta=1.25))
    assert given.verdict == "within the spread"
    assert given.summary.startswith("Not decided")
    assert given.summary.endswith("Ask for several: seeds=3.")


def test_what_the_other_parts_give_is_told_apart_from_speculation():
    tail = (outcomes("rollpacker", 160, 160, eta=1.0), outcomes("rollpacker", 100, 100, eta=1.25))
    assert "With eta 1, its other parts alone, it has 1.25 x" in advice(outcomes("verl", 200, 200), *tail).summary


def test_a_gain_without_speculation_is_not_credited_to_tail_batching():
    tail = (outcomes("rollpacker", 100, 100, eta=1.0), outcomes("rollpacker", 120, 120, eta=1.25))
    given = advice(outcomes("verl", 200, 200), *tail)
    assert "eta 1" in given.reasons
    assert "tail batching itself does not pay here" in given.summary


def test_speedups_are_paired_by_seed():
    """Seeds differ far more than systems: unpaired, the gain would drown in the spread."""
    given = advice(outcomes("verl", 110, 220, 330), outcomes("rollpacker", 100, 200, 300, eta=1.25))
    assert given.verdict == "pays"
    assert "1.10 x, give or take 0.00" in given.summary


def test_a_seed_that_plain_batching_did_not_run_has_no_speedup():
    found = summarise(with_speedups(outcomes("verl", 200, 210), outcomes("rollpacker", 100, 105, 10, eta=1.25)))
    assert tuple(found.loc[1, ["speedup", "num_paired", "num_seeds"]]) == (2, 2, 3)


def test_the_baseline_is_plain_batching_at_its_best_degree():
    plain = (outcomes("verl", 400, degree=1), outcomes("verl", 200, 200, degree=2))
    found = with_speedups(*plain, outcomes("rollpacker", 100, 100, eta=1.25, degree=4))
    assert list(found["speedup"]) == [0.5, 1.0, 1.0, 2.0, 2.0]
    assert list(summarise(found)["speedup"]) == [0.5, 1.0, 2.0]


def test_a_degree_that_is_short_of_memory_is_told_by_its_cache_and_preemptions():
    given = advice(
        outcomes("verl", 200, 210),
        outcomes("rollpacker", 150, eta=1.25, degree=1, preemptions=40, kv_tokens=21_000),
        outcomes("rollpacker", 100, 105, eta=1.25, degree=2, preemptions=2),
    )
    assert "at TP 1 an engine holds 21,000 tokens of KV and 40 responses a step are preempted" in given.reasons["TP 2"]


def test_what_was_tried_once_is_compared_by_the_seed_that_it_was_tried_with():
    """The first seed is twice as slow as the mean of all: what has no other seed is not worse for that."""
    given = advice(
        outcomes("verl", 400, 200, 200),
        outcomes("rollpacker", 200, 100, 100, eta=1.25),
        outcomes("rollpacker", 220, eta=1.25, degree=4),
        outcomes("rollpacker", 220, eta=1.25, num_gpus=16),
        outcomes("rollpacker", 190, eta=1.25, num_gpus=64),
    )
    assert given.reasons["TP 2"].startswith("200 s a step with the first seed; TP 4 220 s: ")
    assert given.reasons["GPUs 16"].startswith("16 take 1.10 times as long a step; 64 take 0.95 times as long a step")


@pytest.mark.parametrize(("later", "said"), [((70, 70), " at eta 1.5"), ((120, 120), "")])
def test_other_numbers_of_gpus_are_compared_at_the_eta_that_they_were_tried_with(later, said):
    """Eta 1.5 led after the first seed, and is what other numbers of GPUs have; the next seeds may choose another."""
    given = advice(
        outcomes("verl", 200, 200, 200),
        outcomes("rollpacker", 100, eta=1.25, degree=4),
        outcomes("rollpacker", 100, *later, eta=1.25),
        outcomes("rollpacker", 80, 100, 100, eta=1.5),
        outcomes("rollpacker", 104, eta=1.5, num_gpus=16),
        outcomes("rollpacker", 76, eta=1.5, num_gpus=64),
    )
    times = f"16 take 1.30 times as long a step; 64 take 0.95 times as long a step{said}: fewer wait"
    assert given.reasons["GPUs 32"].startswith(times)


def test_other_degrees_are_compared_at_the_eta_that_they_were_tried_with():
    given = advice(
        outcomes("verl", 200, 200),
        outcomes("rollpacker", 100, 100, eta=1.25),
        outcomes("rollpacker", 110, eta=1.25, degree=4),
        outcomes("rollpacker", 60, 60, eta=1.5),
    )
    assert given.reasons["TP 2"].startswith("100 s a step with the first seed at eta 1.25; TP 4 110 s: ")


@pytest.mark.parametrize(
    ("first_s", "told"),
    [(75, "1.25 takes 75 s."), (65, "1.25 takes 65 s: the choice goes by all seeds, of the factors")],
)
def test_a_factor_with_fewer_seeds_is_compared_by_the_first_seed(first_s, told):
    """Seeds differ: a mean of the first seed alone says nothing against a mean of two."""
    given = advice(
        outcomes("verl", 100, 140), outcomes("rollpacker", 70, 90, eta=1.5), outcomes("rollpacker", first_s, eta=1.25)
    )
    assert given.reasons["eta 1.5"].startswith(f"70 s a step with the first seed; {told}")


def test_a_faster_factor_that_launches_more_is_not_chosen_within_the_spread():
    tail = outcomes("rollpacker", 101, 97, eta=1.25), outcomes("rollpacker", 100, 96, eta=1.5)
    told = advice(outcomes("verl", 200, 200), *tail).reasons["eta 1.25"]
    assert told.endswith("1.5 takes 98 s: no difference beyond the spread is in favour of launching more.")


def test_of_factors_that_are_equally_fast_the_one_that_launches_least_is_chosen():
    tail = (
        outcomes("rollpacker", 140, 142, 138, eta=1.0),
        outcomes("rollpacker", 102, 98, 100, eta=1.125),
        outcomes("rollpacker", 101, 97, 100, eta=1.5),
    )
    given = advice(outcomes("verl", 200, 200, 200), *tail)
    assert "1 takes 140 s" in given.reasons["eta 1.125"]


@pytest.mark.parametrize(
    ("half_s", "double_s", "num_judge_gpus", "suggested"),
    [(120, 90, 0, 16), (190, 55, 0, 64), (190, 95, 0, 32), (110, 50, 0, 16), (120, 90, 4, 32), (110, 90, 4, 16)],
)
def test_fewer_gpus_are_suggested_where_they_do_nearly_as_well_and_more_where_they_are_used(
    half_s, double_s, num_judge_gpus, suggested
):
    """A judge's own GPUs are not fewer with half of the others."""
    given = advice(
        outcomes("verl", 200, 210, num_judge_gpus=num_judge_gpus),
        outcomes("rollpacker", 100, 100, eta=1.25, num_judge_gpus=num_judge_gpus),
        outcomes("rollpacker", half_s, eta=1.25, num_gpus=16, num_judge_gpus=num_judge_gpus),
        outcomes("rollpacker", double_s, eta=1.25, num_gpus=64, num_judge_gpus=num_judge_gpus),
    )
    assert f"GPUs {suggested}" in given.reasons


def test_the_range_of_the_speedup_over_rho_compares_within_each_rho():
    found = with_speedups(
        outcomes("verl", 200, rho=0.0),
        outcomes("rollpacker", 160, eta=1.25, rho=0.0),
        outcomes("verl", 300, rho=0.6),
        outcomes("rollpacker", 100, eta=1.25, rho=0.6),
        outcomes("verl", 300, rho=0.3),
    )
    assert speedup_by_rho(found, 32) == ("rollpacker", {0.0: 1.25, 0.6: 3.0})


def test_the_range_over_rho_is_of_the_system_that_was_varied_wherever_it_stands_among_them():
    varied = (outcomes("rollpacker", 100, eta=1.25), outcomes("rollpacker", 150, eta=1.25, rho=0.6))
    plain = (outcomes("verl", 200), outcomes("verl", 300, rho=0.6))
    for others in ((outcomes("ours", 120, eta=1.25), *varied), (*varied, outcomes("ours", 120, eta=1.25))):
        assert speedup_by_rho(with_speedups(*plain, *others), 32) == ("rollpacker", {0.3: 2.0, 0.6: 2.0})


@pytest.mark.parametrize("preemptions", [0, 40])
def test_no_reason_is_given_against_a_degree_that_was_faster(preemptions):
    trials = outcomes("verl", 200, 210, 190), outcomes("rollpacker", 100, 80, 80, eta=1.25)
    given = advice(*trials, outcomes("rollpacker", 95, degree=4, eta=1.25, preemptions=preemptions))
    assert given.reasons["TP 2"].endswith("TP 4 95 s: no slower with this seed, but the choice goes by all seeds.")
