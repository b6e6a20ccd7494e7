"""Scores and their errors, against enumeration and resampling."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.evaluation.statistics import mean_difference, mean_reward, pass_at, quantile

REWARDS = [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 0.0, 1.0], [0.5, 1.0, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.5, 0.0]]
OTHERS = [[1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [0.5, 1.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.5, 0.0]]


@given(st.lists(st.integers(0, 5), min_size=1, max_size=4), st.integers(1, 5))
def test_pass_at_k_is_the_share_of_all_choices_of_k_that_hold_a_pass(num_passed: list[int], k: int) -> None:
    each = []
    for passed in num_passed:
        choices = list(itertools.combinations([True] * passed + [False] * (5 - passed), k))
        each.append(sum(map(any, choices)) / len(choices))
    value, _ = pass_at(k, num_passed, 5)
    assert value == pytest.approx(fmean(each))


def test_pass_at_k_is_unbiased_where_the_plain_formula_is_not() -> None:
    p, n, k = 0.3, 4, 2
    outcomes = [(sum(flips), math.prod(p if flip else 1 - p for flip in flips)) for flips in _flips(n)]
    expected = sum(chance * pass_at(k, [passed], n)[0] for passed, chance in outcomes)
    plain = sum(chance * (1 - (1 - passed / n) ** k) for passed, chance in outcomes)
    assert expected == pytest.approx(1 - (1 - p) ** k)
    assert plain < expected - 0.01


def _flips(n: int) -> list[tuple[bool, ...]]:
    return list(itertools.product([False, True], repeat=n))


def test_the_error_over_prompts_is_what_resampling_prompts_gives() -> None:
    source = random.Random(0)
    means = [fmean(of_prompt) for of_prompt in REWARDS]
    resampled = [fmean(source.choices(means, k=len(means))) for _ in range(20_000)]
    bessel = math.sqrt(len(means) / (len(means) - 1))  # a bootstrap of P values has the variance of P, not P - 1
    assert mean_reward(REWARDS).se_over_prompts == pytest.approx(pstdev(resampled) * bessel, rel=0.03)
    _, of_pass = pass_at(2, [3, 1, 1, 4, 0], 4)
    each = [pass_at(2, [passed], 4)[0] for passed in [3, 1, 1, 4, 0]]
    resampled = [fmean(source.choices(each, k=len(each))) for _ in range(20_000)]
    assert of_pass == pytest.approx(pstdev(resampled) * bessel, rel=0.03)


def test_the_error_given_the_prompts_is_what_resampling_each_prompts_responses_gives() -> None:
    source = random.Random(0)
    resampled = [fmean(fmean(source.choices(of_prompt, k=4)) for of_prompt in REWARDS) for _ in range(20_000)]
    assert mean_reward(REWARDS).se_given_prompts == pytest.approx(pstdev(resampled) * math.sqrt(4 / 3), rel=0.03)


def test_both_errors_cover_the_truth_as_often_as_two_of_them_should() -> None:
    source = random.Random(1)
    num_covered = {"given": 0, "over": 0}
    num_trials = 1_000
    for _ in range(num_trials):
        rates = [source.betavariate(0.6, 0.6) for _ in range(60)]
        rewards = [[float(source.random() < rate) for _ in range(4)] for rate in rates]
        estimate = mean_reward(rewards)
        assert estimate.se_given_prompts is not None
        assert estimate.se_over_prompts is not None
        num_covered["given"] += abs(estimate.value - fmean(rates)) < 2 * estimate.se_given_prompts
        num_covered["over"] += abs(estimate.value - 0.5) < 2 * estimate.se_over_prompts
    assert 0.93 < num_covered["given"] / num_trials < 0.98
    assert 0.93 < num_covered["over"] / num_trials < 0.98


def test_a_paired_difference_is_the_difference_of_the_means_with_the_error_of_the_pairs() -> None:
    difference = mean_difference(REWARDS, OTHERS)
    assert difference.value == pytest.approx(mean_reward(REWARDS).value - mean_reward(OTHERS).value)
    source = random.Random(0)
    pairs = [[a - b for a, b in zip(one, other, strict=True)] for one, other in zip(REWARDS, OTHERS, strict=True)]
    resampled = [fmean(fmean(source.choices(of_prompt, k=4)) for of_prompt in pairs) for _ in range(20_000)]
    assert difference.se_given_prompts == pytest.approx(pstdev(resampled) * math.sqrt(4 / 3), rel=0.03)
    assert mean_difference(REWARDS, REWARDS).se_over_prompts == 0
    with pytest.raises(ValueError, match="zip"):
        mean_difference(REWARDS, OTHERS[1:])


def test_one_response_or_one_prompt_says_nothing_about_its_error() -> None:
    assert mean_reward([[1.0], [0.0]]).se_given_prompts is None
    assert mean_reward([[1.0, 0.0]]).se_over_prompts is None


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 100))
def test_a_quantile_is_the_first_value_that_enough_values_do_not_exceed(values: list[int], percent: int) -> None:
    ascending = sorted(values)
    found = quantile(ascending, percent)
    assert sum(value <= found for value in values) * 100 >= percent * len(values)
    assert all(
        sum(value <= lower for value in values) * 100 < percent * len(values) for lower in values if lower < found
    )
