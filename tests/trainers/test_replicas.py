from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.core.errors import ImpossibleEvent
from rollpacker.trainers.microbatches import Sample
from rollpacker.trainers.replicas import Balance, StepShares

if TYPE_CHECKING:
    from rollpacker.trainers.grpo import GrpoTrainer

CALLS = st.lists(st.lists(st.integers(1, 500), max_size=20), max_size=6)


@given(CALLS, st.integers(1, 5))
def test_replicas_differ_by_no_more_than_the_longest_sample_over_any_number_of_calls(calls: list[list[int]], num: int):
    balance, loads = Balance(num), [0] * num
    for lengths in calls:
        for length, replica in zip(lengths, balance.assign(lengths, range(num)), strict=True):
            loads[replica] += length
    assert max(loads) - min(loads) <= max((length for lengths in calls for length in lengths), default=0)


@given(CALLS, st.integers(1, 5))
def test_every_rank_comes_to_the_same_shares(calls: list[list[int]], num: int):
    left, right = Balance(num), Balance(num)
    for lengths in calls:
        assert left.assign(lengths, range(num)) == right.assign(lengths, range(num))


def test_only_the_replicas_that_take_part_get_samples_and_the_others_catch_up():
    balance = Balance(3)
    assert set(balance.assign([10] * 8, [0, 2])) == {0, 2}
    assert np.bincount(balance.assign([10] * 4, range(3))).tolist() == [0, 4]


def sample_of(length: int) -> Sample:
    """Of so many positions."""
    one = np.ones(1, dtype=np.int32)
    return Sample(
        prompt_token_ids=one,
        response_token_ids=np.resize(one, length),
        behaviour_logprobs=np.zeros(length, dtype=np.float32),
        advantages_R=np.ones(length, dtype=np.float32),
    )


def shares_of(num_parts: int, part: int, whole_up_to: int) -> StepShares:
    """Of a context-parallel rank of the second of two replicas."""
    return StepShares(
        num_groups=1,
        num_minibatches=1,
        num_replicas=2,
        replica=1,
        num_parts=num_parts,
        part=part,
        whole_up_to=whole_up_to,
    )


@given(CALLS, st.integers(2, 4), st.integers(0, 600))
def test_a_sample_is_split_among_all_context_parallel_ranks_or_whole_on_one(
    calls: list[list[int]], num_parts: int, limit: int
):
    ranks = [shares_of(num_parts, part, limit) for part in range(num_parts)]
    undivided = shares_of(1, 0, 0)
    for lengths in calls:
        samples = [sample_of(length) for length in lengths]
        of_replica = [sample.num_inputs for sample in undivided.trained(samples, [0, 1])]
        of_ranks = [rank.trained(samples, [0, 1]) for rank in ranks]
        split = [[sample.num_inputs for sample in own if not sample.is_whole] for own in of_ranks]
        whole = [[sample.num_inputs for sample in own if sample.is_whole] for own in of_ranks]
        assert all(each == split[0] for each in split), "what is split is the same everywhere, in the same order"
        assert sorted(split[0] + [length for each in whole for length in each]) == sorted(of_replica)
        longest = min(limit, sum(lengths) // (2 * num_parts))
        assert all(length > longest for length in split[0])
        assert all(length <= longest for each in whole for length in each)
        loads = [sum(each) for each in whole]
        assert max(loads) - min(loads) <= longest


def test_samples_too_few_for_all_context_parallel_ranks_are_split():
    assert [sample.is_whole for sample in shares_of(2, 0, 500).trained([sample_of(100)] * 2, [1])] == [True]
    assert [sample.is_whole for sample in shares_of(2, 0, 500).trained([sample_of(100)], [1])] == [False]


REWARDS = [(1, 0, 0, 1), (0, 0, 0, 1), (1, 1, 1, 1), (0.5, 0, 1, 0), (0, 0, 0, 0), (1, 1, 0, 1)]


def replica_of(bench: Any, replica: int, **section: Any) -> GrpoTrainer:
    """One of two replicas, on GPU 0 or on GPU 1, that never meets the other: its gradient is its share."""
    trainer: GrpoTrainer = bench.trainer(**section)
    policy: Any = trainer._policy
    policy.replica, policy.num_replicas = replica, 2
    trainer._replica_gpus = ((0,), (1,))
    return trainer


def gradient(trainer: GrpoTrainer) -> torch.Tensor:
    policy: Any = trainer._policy
    parameters = policy._parameters.values()
    return torch.cat([(torch.zeros_like(each) if each.grad is None else each.grad).flatten() for each in parameters])


async def test_the_shares_of_the_replicas_add_up_to_the_gradient_of_one_process(bench):
    groups = bench.groups(REWARDS)
    trainers = [bench.trainer(), replica_of(bench, 0), replica_of(bench, 1)]
    for trainer in trainers:
        await trainer.begin_step(bench.shape(groups))
        await trainer.accumulate(groups[:2])
        await trainer.accumulate(groups[2:])
    whole, first, second = (gradient(trainer) for trainer in trainers)
    assert min(first.norm(), second.norm()) > 0.1 * whole.norm()
    torch.testing.assert_close(first + second, whole, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("section", [{}, {"num_minibatches": 2}])
async def test_replicas_on_lent_gpus_work_alone_and_those_that_still_generate_do_nothing(bench, section):
    groups = bench.groups(REWARDS)
    trainers = [bench.trainer(**section), replica_of(bench, 0, **section), replica_of(bench, 1, **section)]
    num_passes = [0, 0, 0]
    for index, trainer in enumerate(trainers):
        policy: Any = trainer._policy

        def count(*_: Any, index: int = index) -> None:
            num_passes[index] += 1

        policy._model.register_forward_hook(count)
        await trainer.begin_step(bench.shape(groups))
        await trainer.accumulate(groups, {1, 5})
    whole, lent, busy = (gradient(trainers[index]) for index in (0, 2, 1))
    assert num_passes[1] == 0
    assert num_passes[2] == num_passes[0] > 0
    assert torch.equal(lent, whole)
    assert not busy.any()


async def test_a_share_of_gpus_that_holds_no_replica_is_refused_before_anything_changes(bench):
    groups = bench.groups(REWARDS)
    trainer = replica_of(bench, 0)
    await trainer.begin_step(bench.shape(groups))
    with pytest.raises(ImpossibleEvent, match=r"on GPUs \[7\]"):
        await trainer.accumulate(groups, {7})
    await trainer.accumulate(groups)
