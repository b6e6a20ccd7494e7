"""HTTP requests with one time limit for the whole answer, where a socket's own limit is that of each read.

A server that refuses a request by its length may answer and close before it has read all of it; that answer is read.

Invariant: no answer is read after the limit, however slowly its bytes come, those of its headers too.
"""

from __future__ import annotations

import contextlib
import functools
import http.client
import io
import socket
import time
import urllib.request
from collections.abc import Callable
from typing import Any


def open_bounded(request: urllib.request.Request, timeout_s: float) -> http.client.HTTPResponse:
    """Send a request, as `urllib.request.urlopen` does, and give its answer, which is to be closed.

    Raises:
        TimeoutError: The limit has passed; reading the answer raises it, too.
        urllib.error.URLError: As `urlopen`.
    """
    handlers = (_HttpHandler(), _HttpsHandler())
    for each in handlers:
        each.ends_s = time.monotonic() + timeout_s
    answer: http.client.HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return answer


class _BoundedReader(io.RawIOBase):
    """What a socket receives up to a moment of the monotonic clock."""

    def __init__(self, connected: socket.socket, received: io.RawIOBase, ends_s: float) -> None:
        self._socket = connected
        self._received = received
        self._ends_s = ends_s

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_s = self._ends_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        return self._received.readinto(buffer)

    def close(self) -> None:
        self._received.close()
        super().close()


class _Answer(http.client.HTTPResponse):
    def __init__(self, connected: socket.socket, *given: Any, ends_s: float, **named: Any) -> None:
        super().__init__(connected, *given, **named)
        self.fp = io.BufferedReader(_BoundedReader(connected, self.fp.detach(), ends_s))


class _Handler(urllib.request.AbstractHTTPHandler):
    ends_s: float

    def do_open(self, http_class: Any, req: urllib.request.Request, **named: Any) -> http.client.HTTPResponse:
        def connect(*given: Any, **others: Any) -> http.client.HTTPConnection:
            connection: http.client.HTTPConnection = http_class(*given, **others)
            connection.response_class = functools.partial(_Answer, ends_s=self.ends_s)  # type: ignore[assignment]
            connection.send = functools.partial(_send, connection, connection.send)  # type: ignore[method-assign]
            return connection

        return super().do_open(connect, req, **named)


def _send(connection: http.client.HTTPConnection, send: Callable[[Any], None], data: Any) -> None:
    """Send as much as the server takes; where it has closed, its answer, or the lack of one, says why."""
    if connection.sock is None:
        connection.connect()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        send(data)


class _HttpHandler(_Handler, urllib.request.HTTPHandler):
    pass


class _HttpsHandler(_Handler, urllib.request.HTTPSHandler):
    pass
