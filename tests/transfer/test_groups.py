"""A process group over NCCL is there in time or not at all; NCCL's part is a stand-in's."""

import threading

import pytest
import torch
from torch.distributed import HashStore

from rollpacker.transfer.groups import BroadcastGroup

ENOUGH_S = 60.0
TOO_SHORT_S = 0.05


class StandIn:
    """Like NCCL's group it is made at once, and meets the other members within its first broadcast."""

    Options = type("Options", (), {})
    error: Exception | None = None

    def __init__(self, store, rank, size, options):  # noqa: ARG002  # NCCL's
        self.num_bytes = []
        self.has_met = threading.Event()
        if size == 1:
            self.has_met.set()

    def broadcast(self, tensors, options):  # noqa: ARG002  # the same
        self.has_met.wait()
        if self.error is not None:
            raise self.error
        self.num_bytes += [tensor.numel() for tensor in tensors]


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch):
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", StandIn, raising=False)


def group_of(size, timeout_s):
    return BroadcastGroup(
        backend="nccl",
        store=HashStore(),
        name="0/group",
        rank=0,
        size=size,
        address="",
        device=torch.device("cpu"),
        timeout_s=timeout_s,
    )


def test_members_that_are_all_there_have_met_before_the_first_bucket():
    group = group_of(1, ENOUGH_S)
    assert group._group.num_bytes == [1]
    group.broadcast(torch.zeros(7, dtype=torch.uint8))
    assert group._group.num_bytes == [1, 7]


def test_a_member_that_does_not_come_costs_the_timeout_and_no_more():
    with pytest.raises(RuntimeError, match=r"did not connect within 0\.05 s"):
        group_of(2, TOO_SHORT_S)


def test_what_the_first_broadcast_raises_is_raised_here(monkeypatch):
    monkeypatch.setattr(StandIn, "error", RuntimeError("NCCL: remote process exited"))
    with pytest.raises(RuntimeError, match="remote process exited"):
        group_of(1, ENOUGH_S)
