"""Chooses each receiver's transport: memory shared with the sender, or membership in a process group. A pure function.

* A receiver on the sender's node opens the sender's buckets where they lie: nothing travels, and it works where NCCL
  does not, between two processes on one GPU.
* The others, on other nodes, form one group with the sender, in which each bucket is broadcast: NCCL over the network
  that the GPUs have, gloo without GPUs.

Buckets lie on the sender's GPU if every receiver can take them from there: those that share memory see that GPU, and
the group's members have one GPU each and all different. Else they lie in the host's memory for all receivers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rollpacker.core.errors import ConfigError

Transport = Literal["auto", "broadcast", "handles"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """Where a process works."""

    node: str
    """Equal for processes that can open each other's memory: the same kernel, and process ids that mean the same."""
    gpu: str | None = None
    """The GPU that it works on, by its UUID."""
    visible_gpus: tuple[str, ...] = ()
    """By CUDA's index in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transports:
    """How each receiver takes the buckets."""

    memory: Literal["host", "cuda"]
    """Where the buckets lie."""
    by_handle: tuple[str, ...]
    in_group: tuple[str, ...]
    """By ascending rank; the sender's is 0."""

    @property
    def receivers(self) -> tuple[str, ...]:
        return self.by_handle + self.in_group


def choose_transports(transport: Transport, sender: Station, receivers: Mapping[str, Station]) -> Transports:
    """Choose for every receiver; raises `ConfigError` when the transport does not reach one."""
    is_near = {name: station.node == sender.node for name, station in receivers.items()}
    if transport == "handles" and not all(is_near.values()):
        far = sorted(name for name in receivers if not is_near[name])
        raise ConfigError(
            f"weight_sync.transport=handles, but {', '.join(far)} cannot open memory of the trainer.",
            "Memory is shared by processes of one node and one container.",
            "Choose weight_sync.transport=auto or broadcast.",
        )
    by_handle = tuple(name for name in receivers if transport != "broadcast" and is_near[name])
    in_group = tuple(name for name in receivers if name not in by_handle)
    group_gpus = [sender.gpu, *(receivers[name].gpu for name in in_group)]
    is_on_gpu = (
        sender.gpu is not None
        and all(sender.gpu in receivers[name].visible_gpus for name in by_handle)
        and None not in group_gpus
        and len(set(group_gpus)) == len(group_gpus)
    )
    return Transports(memory="cuda" if is_on_gpu else "host", by_handle=by_handle, in_group=in_group)
