"""The process group of a trainer's ranks, and small collectives beside tensors.

Invariant: a process belongs to one trainer; its default process group is that trainer's ranks. Every collective has
the longest deadline of the trainer's calls, so a rank that fails takes the others with it instead of leaving them
waiting; the driver keeps the shorter ones.
"""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from rollpacker.core.errors import EngineFailed, RollpackerError
from rollpacker.transfer.stores import open_store, reach_store

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rollpacker.protocols.trainer import TrainerRank

Result = TypeVar("Result")


def own_device() -> torch.device:
    """The accelerator that this process sees, or the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def join(rank: TrainerRank | None, *, timeout_s: float) -> None:
    """Join the other ranks; None is the only rank. Raises `EngineFailed`."""
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    timeout = timedelta(seconds=timeout_s)
    if rank is None:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        return
    address, _, port = rank.rendezvous.rpartition(":")
    make_store = open_store if rank.rank == 0 else reach_store
    try:
        store = make_store(address, int(port), timeout_s=timeout_s, num_members=rank.num_ranks)
        dist.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.num_ranks, timeout=timeout)
    except (dist.DistError, OSError) as error:
        raise EngineFailed(
            f"Trainer rank {rank.rank} of {rank.num_ranks} did not meet the others at {rank.rendezvous}: {error}",
            f"All ranks start within {timeout_s:g} s and reach that address",
            "Look at the logs of the other ranks for what kept them, and at the network between the nodes",
        ) from error


def leave() -> None:
    """Leave the process group, if this process is in one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def on_rank_0(work: Callable[[], Result]) -> Result:
    """Do something on rank 0; all ranks return its small, picklable result, or raise its `RollpackerError`."""
    outcome: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            outcome[0] = work()
        except RollpackerError as error:
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    answer, raised = outcome
    if raised is not None:
        raise raised
    result: Result = answer
    return result


def all_reduce(
    values: Sequence[float], how: Literal["sum", "max"], device: torch.device, group: dist.ProcessGroup | None = None
) -> list[float]:
    """Sum or maximum of each number over the ranks of a group, or all; in double precision; NaN wins a maximum."""
    numbers = torch.tensor(list(values), dtype=torch.float64, device=device)
    if how == "sum":
        dist.all_reduce(numbers, dist.ReduceOp.SUM, group)
        return numbers.tolist()
    # Backends differ in what they make of a NaN, so it travels as a number of its own.
    is_nan = numbers.isnan()
    both = torch.stack([numbers.masked_fill(is_nan, -math.inf), is_nan.double()])
    dist.all_reduce(both, dist.ReduceOp.MAX, group)
    return both[0].masked_fill(both[1] > 0, math.nan).tolist()
