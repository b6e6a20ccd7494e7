"""The side of a process that serves requests: its socket, which is its standard input, and what it sends through it."""

from __future__ import annotations

import json
import os
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OwnSocket(socket.socket):
    """A socket through which only the process that made it sends.

    A process that user code forked, and that raises or returns into ours, exits as it sends: without finalizers, which
    would delete what its parent still has.
    """

    def __init__(self, fileno: int) -> None:
        super().__init__(fileno=fileno)
        self._pid = os.getpid()

    def sendall(self, data: ReadableBuffer, flags: int = 0) -> None:
        if os.getpid() != self._pid:
            os._exit(1)
        super().sendall(data, flags)


def take_standard_input() -> OwnSocket:
    """Give the socket that is this process's standard input, where its children find nothing from then on."""
    taken = OwnSocket(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    return taken


def send_line(receiver: socket.socket, message: object) -> None:
    """Send a message as a line of JSON."""
    receiver.sendall(json.dumps(message).encode() + b"\n")
