"""torch's TCP stores, listening on one address.

A `TCPStore` authenticates no client, and by default listens on every network of its node. Here it listens on one
address: the loopback's where a run uses one node, so that it cannot be reached from outside the node.
"""

from __future__ import annotations

import socket
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch lists no TCPStore


def open_store(address: str, port: int, *, timeout_s: float, num_members: int | None = None) -> TCPStore:
    """Open a store on one address of this node.

    Args:
        address: IPv4.
        port: 0 lets the system choose; `port` of the store is the number.
        timeout_s: For every request to the store.
        num_members: The owner included; it returns when all of them have joined. None does not wait.

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
    """Reach a store that another process has opened; raises `DistError` if it does not answer in time."""
    return TCPStore(
        address,
        port,
        num_members,
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
        wait_for_workers=num_members is not None,
    )
