"""A process group for one transfer, made without torch's default group and thrown away with it.

The trainer's ranks have a default group of their own, and vLLM's workers another one. This one is neither: it is made
from a store and a rank alone, so it can exist beside them, have other members at every attempt, and end when one dies.
"""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, Work  # type: ignore[attr-defined]

_UNBOUNDED = timedelta(days=1)
"""NCCL ends the process when its own limit is over; both ends of a transfer watch the time themselves."""


class BroadcastGroup:
    """Rank 0 sends, all others receive."""

    def __init__(
        self,
        *,
        backend: str,
        store: Store,
        name: str,
        rank: int,
        size: int,
        address: str,
        device: torch.device,
        timeout_s: float,
    ) -> None:
        """Meet the others; raises `RuntimeError` when one does not come within the timeout.

        Args:
            backend: `nccl` or `gloo`.
            store: Where the members find each other.
            name: Of the group, like no other's in this store.
            rank: 0 for the sender.
            size: Members, the sender included.
            address: This node's, in the network that the others are in; only gloo needs it.
            device: Where the data will be.
            timeout_s: For meeting, and for one broadcast where the backend can give up one.
        """
        store = PrefixStore(name, store)
        self._group: Any
        if backend == "nccl":
            nccl = torch.distributed.ProcessGroupNCCL  # not in torch for CPUs
            options = nccl.Options()
            options._timeout = _UNBOUNDED  # noqa: SLF001  (torch has no public name for it)
            self._group = nccl(store, rank, size, options)
            self._connect(torch.zeros(1, dtype=torch.uint8, device=device), timeout_s)
        else:
            gloo = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001  (the same)
            gloo._devices = [ProcessGroupGloo.create_device(hostname=address)]  # noqa: SLF001
            gloo._timeout = timedelta(seconds=timeout_s)  # noqa: SLF001
            self._group = ProcessGroupGloo(store, rank, size, gloo)

    def broadcast(self, data: torch.Tensor) -> Work:
        """Begin to send or to receive; the data stays as it is until the work is done."""
        options = BroadcastOptions()
        options.rootRank = 0
        options.rootTensor = 0
        work: Work = self._group.broadcast([data], options)
        return work

    def _connect(self, data: torch.Tensor, timeout_s: float) -> None:
        """Broadcast something small; raises `RuntimeError` when a member does not take part within the timeout.

        NCCL connects the members within their first broadcast, a call that waits without limit for the last one of
        them. A thread makes the call, and stays in it when it is given up. This has been tested with a stand-in for
        NCCL's group, not on GPUs.
        """
        connected: Future[None] = Future()

        def connect() -> None:
            try:
                self.broadcast(data)
            except Exception as error:  # noqa: BLE001  # raised in the caller
                connected.set_exception(error)
            else:
                connected.set_result(None)

        threading.Thread(target=connect, name="connect-nccl", daemon=True).start()
        try:
            connected.result(timeout_s)
        except TimeoutError as error:
            raise RuntimeError(f"A member did not connect within {timeout_s:g} s.") from error

    def abort(self) -> None:
        """End work that waits for a member that is gone."""
        if isinstance(self._group, ProcessGroupGloo):
            return  # its connections end with the object, and the others notice
        self._group.abort()


def address_towards(host: str, port: int) -> str:
    """This node's address in the network in which it reaches another one. Nothing is sent."""
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        address: str = probe.getsockname()[0]
    return address
