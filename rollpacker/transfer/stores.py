"""Stores of torch that listen where they are told.

A `TCPStore` asks nobody who they are, and by itself listens on every network of its node. Here it listens on one
address: the loopback's where a run uses one node, so that nobody beyond the node can reach it.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch lists no TCPStore


def open_store(address: str, port: int, *, timeout_s: float, num_members: int | None = None) -> TCPStore:
    """Open a store on one address of this node.

    Args:
        address: IPv4.
        port: 0 lets the system choose; the store says which it is.
        timeout_s: For every question that the store is asked.
        num_members: The owner included; it returns when all of them have come. None waits for nobody.

    Raises:
        OSError: The port is taken.
        DistError: A member did not come in time.
    """
    server = socket.create_server((address, port))
    return TCPStore(
        address,
        server.getsockname()[1],
        num_members,
        is_master=True,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=num_members is not None,
        master_listen_fd=server.detach(),
    )


def reach_store(address: str, port: int, *, timeout_s: float, num_members: int | None = None) -> TCPStore:
    """Reach a store that another process has opened; raises `DistError` where nobody answers in time."""
    return TCPStore(
        address,
        port,
        num_members,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=num_members is not None,
    )
