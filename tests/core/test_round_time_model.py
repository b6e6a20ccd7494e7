"""The guess of a round's time on engines of each degree."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rollpacker.core.round_time_model import fastest_degree, round_s
from tests.core.plans import degree_costs

ONE = replace(degree_costs(1), num_engines=1, kv_tokens=10**6, pass_s=(1.0, 8.0), prefill_s=0.25, kv_read_s=0.5)


def test_a_round_is_prefill_passes_and_reading_what_is_cached() -> None:
    assert round_s(ONE, [3], 4) == 4 * 0.25 + 3 * 1.0 + (4 + 5 + 6) * 0.5
    both = (4 + 4) * 0.25 + 2 * 2.0 + (8 + 10) * 0.5
    assert round_s(ONE, [3, 2], 4) == both + 1.0 + 6 * 0.5, "the longer one goes on alone"


def test_a_batch_between_two_measured_sizes_and_beyond_them_follows_straight_lines() -> None:
    assert [ONE.decode_s(size) for size in (1, 4, 8, 16)] == [1.0, 4.0, 8.0, 16.0]


def test_what_does_not_fit_waits_and_who_loses_its_place_is_computed_again() -> None:
    free = replace(ONE, kv_read_s=0.0)
    assert round_s(replace(free, max_num_seqs=1), [3, 3], 4) == 2 * round_s(free, [3], 4)
    tight = replace(free, kv_tokens=14)
    until_it_is_full, rest = 2 * 4 * 0.25 + 3 * 2.0, 2 * 1.0
    assert round_s(tight, [5, 5], 4) == pytest.approx(until_it_is_full + rest + 7 * 0.25 + rest)


def test_sequences_that_no_cache_holds_run_one_after_the_other() -> None:
    assert round_s(replace(ONE, kv_tokens=0), [3, 2], 4) == round_s(ONE, [3], 4) + round_s(ONE, [2], 4)


def test_long_responses_want_the_memory_of_a_larger_degree_and_short_ones_more_engines() -> None:
    costs = [degree_costs(degree) for degree in (1, 2, 4)]
    assert fastest_degree(costs, [60] * 20, 5) == 2
    assert fastest_degree(costs, [10] * 30, 5) == 1
    same = [replace(costs[0], degree=degree) for degree in (4, 2)]
    assert fastest_degree(same, [10], 5) == 2, "of equal ones the smallest"
