from __future__ import annotations

import socket

import pytest
import torch.distributed as dist

from rollpacker.core.errors import EngineFailed
from rollpacker.protocols.trainer import TrainerRank
from rollpacker.trainers.process_group import all_reduce, join, leave, own_device


def test_a_rank_that_does_not_find_the_others_says_where_it_looked():
    with socket.socket() as silent:  # bound and never listening
        silent.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(EngineFailed, match="rank 1 of 2 did not meet the others") as raised:
            join(TrainerRank(rank=1, num_ranks=2, rendezvous=address), timeout_s=0.1)
    assert address in raised.value.problem
    assert not dist.is_initialized()


def test_the_only_rank_is_a_group_of_its_own_that_it_may_leave_twice_and_join_again():
    leave()
    for _ in range(2):
        assert not dist.is_initialized()
        join(None, timeout_s=60)
        try:
            assert (dist.get_rank(), dist.get_world_size()) == (0, 1)
            assert all_reduce([2.5], "sum", own_device()) == [2.5]
        finally:
            leave()
            leave()
    assert not dist.is_initialized()
