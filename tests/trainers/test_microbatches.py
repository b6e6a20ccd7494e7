from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.trainers.microbatches import CPU_PASS_TOKENS, Sample, pack, pass_cost, plan_microbatches

LENGTHS = st.lists(st.integers(1, 300), max_size=40)
BUDGETS = st.integers(1, 2000)


@given(LENGTHS, BUDGETS)
def test_every_response_is_in_exactly_one_microbatch(lengths: list[int], budget: int):
    plan = plan_microbatches(lengths, budget)
    assert sorted(itertools.chain.from_iterable(plan)) == list(range(len(lengths)))
    assert all(plan)


@given(LENGTHS, BUDGETS)
def test_only_a_single_long_response_exceeds_the_budget(lengths: list[int], budget: int):
    for rows in plan_microbatches(lengths, budget):
        assert len(rows) == 1 or len(rows) * max(lengths[row] for row in rows) <= budget


@given(LENGTHS, BUDGETS)
def test_lengths_fall_from_first_to_last_and_equal_ones_keep_their_order(lengths: list[int], budget: int):
    order = list(itertools.chain.from_iterable(plan_microbatches(lengths, budget)))
    assert order == sorted(order, key=lambda row: (-lengths[row], row))


@given(st.lists(st.integers(1, 300), min_size=1, max_size=7), st.integers(100, 1500))
def test_no_other_cut_of_the_sorted_lengths_is_cheaper(lengths: list[int], budget: int):
    def cost(runs: list[list[int]]) -> int:
        return sum(max(run) * len(run) + CPU_PASS_TOKENS for run in runs)

    ordered = sorted(lengths, reverse=True)
    cuts = (_cut(ordered, is_cut) for is_cut in itertools.product([False, True], repeat=len(ordered) - 1))
    cheapest = min(cost(runs) for runs in cuts if all(len(run) == 1 or len(run) * run[0] <= budget for run in runs))
    assert cost([[lengths[row] for row in rows] for rows in plan_microbatches(lengths, budget)]) == cheapest


def _cut(ordered: list[int], is_cut: tuple[bool, ...]) -> list[list[int]]:
    runs = [[ordered[0]]]
    for length, cut in zip(ordered[1:], is_cut, strict=True):
        if cut:
            runs.append([])
        runs[-1].append(length)
    return runs


def test_a_few_long_responses_do_not_pad_the_many_short_ones():
    assert plan_microbatches([10] * 50 + [500], 100_000) == [(50,), tuple(range(50))]


@pytest.mark.parametrize(
    ("pass_cost_tokens", "num_passes"),
    [
        (pass_cost(torch.device("cpu")), 27),
        (pass_cost(torch.device("cuda")), 20),
        (None, 10),
    ],
    ids=["a CPU", "an accelerator", "without padding"],
)
def test_the_dearer_a_pass_is_where_it_runs_the_fewer_are_made(pass_cost_tokens: int | None, num_passes: int):
    lengths = np.random.default_rng(0).integers(500, 4001, 64).tolist()
    assert sum(lengths) > 8 * 16384
    plan = plan_microbatches(lengths, 16384, pass_cost_tokens)
    assert len(plan) == num_passes
    assert sorted(itertools.chain.from_iterable(plan)) == list(range(64))


@given(LENGTHS, BUDGETS)
def test_rows_without_padding_fill_the_budget_in_the_fewest_runs(lengths: list[int], budget: int):
    sizes = [[lengths[row] for row in rows] for rows in plan_microbatches(lengths, budget, None)]
    assert all(len(run) == 1 or sum(run) <= budget for run in sizes)
    fewest, room = 0, 0
    for length in sorted(lengths, reverse=True):
        if length > room:
            fewest, room = fewest + 1, budget
        room -= length
    assert len(sizes) == fewest


def sample(prompt: list[int], response: list[int], advantage: float) -> Sample:
    return Sample(
        prompt_token_ids=np.array(prompt, dtype=np.int32),
        response_token_ids=np.array(response, dtype=np.int32),
        behaviour_logprobs=-np.array(response, dtype=np.float32),
        advantages_R=np.full(len(response), advantage, dtype=np.float32),
    )


def test_a_microbatch_predicts_each_response_token_from_the_one_before_it():
    samples = [sample([5, 6, 7], [11], 0.5), sample([8, 9], [12, 13, 14], -1.0)]
    (batch,) = pack(samples, 100, torch.device("cpu"))
    assert batch.rows == (1, 0)
    assert batch.num_tokens_B == (3, 1)
    assert batch.input_ids_BT.tolist() == [[8, 9, 12, 13], [5, 6, 7, 11]]
    # The shortest prompt has two tokens, so the last three positions are scored.
    assert batch.num_scored == 3
    assert batch.target_ids_BK.tolist() == [[12, 13, 14], [7, 11, 0]]
    assert batch.is_sampled_BK.tolist() == [[True, True, True], [False, True, False]]
    assert batch.target_ids_BK[batch.is_sampled_BK].tolist() == [12, 13, 14, 11]
    assert batch.behaviour_N.tolist() == [-12.0, -13.0, -14.0, -11.0]
    assert batch.advantages_N.tolist() == [-1.0, -1.0, -1.0, 0.5]
    assert batch.proximal_N is None


def test_what_ranks_share_comes_first_and_whole_samples_get_the_room_of_one_of_them():
    samples = [dataclasses.replace(sample([5], [7] * 10, 1.0), is_whole=index % 2 == 0) for index in range(8)]
    batches = pack(samples, 40, torch.device("cpu"), num_parts=2)
    assert [(batch.is_whole, batch.rows) for batch in batches] == [
        (False, (1, 3, 5, 7)),
        (True, (0, 2)),
        (True, (4, 6)),
    ]


def test_nothing_to_pack_gives_nothing():
    assert pack([], 100, torch.device("cpu")) == []
