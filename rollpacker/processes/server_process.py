"""A process that serves requests: started, sent requests, restarted when it dies, and ended.

Invariant: it has at most one request at a time. After one that it did not respond to, it is restarted before the next,
or of no further use.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from rollpacker.config.python_names import START_LIMIT_S
from rollpacker.core.errors import EngineFailed
from rollpacker.processes.package_modules import environment_of_children, words_that_run

_LINE_BYTES = 1 << 24
"""The longest response, such as the results of a hundred thousand test cases."""

STOP_LIMIT_S = 2.0
"""For a process to exit when its socket is closed, and again at SIGTERM, before it is killed."""


class ProcessDied(Exception):
    """It ended before it responded."""


class DiedAtStart(EngineFailed):
    """It ended before it was ready, and said no reason."""


class LateStart(EngineFailed):
    """It was not ready in time; where less starts at once, it may be."""


class ServerProcess:
    """A process that responds to JSON lines, started at once and restarted when it dies. Owned by one task.

    Args:
        module_name: Run with the arguments and this process's id; its socket is its standard input.
        arguments: Of its command line.
        role: What it is, in messages.
        python: Another interpreter to run it with, which finds of this one's packages ours alone.
        variables: Of its process; None: those of this one, with this package's path.
        start_limit_s: For it to be ready.
    """

    def __init__(
        self,
        module_name: str,
        arguments: Sequence[str],
        role: str,
        python: str | None = None,
        variables: Mapping[str, str] | None = None,
        *,
        start_limit_s: float = START_LIMIT_S,
    ) -> None:
        self._role = role
        self._start_limit_s = start_limit_s
        self._python = python
        self._variables = variables
        self._module_name = module_name
        self._arguments = arguments
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._socket: socket.socket
        self.greeting: dict[str, Any] = {}
        """What it first sent, once `start_failure` has waited for it."""
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_died(self) -> bool:
        """Whether it ended, and was not restarted since."""
        return self._process.poll() is not None

    @property
    def is_ready(self) -> bool:
        """Whether it can take a request, as far as was waited for that."""
        return self._is_ready

    async def request(self, line: str, limit_s: float) -> dict[str, Any]:
        """Give the response to a request, both as JSON; a process that gives none is restarted.

        Raises:
            EngineFailed: The process cannot start; no request can ever be served, unless it is a `DiedAtStart` or a
                `LateStart`.
            ProcessDied: It ended.
            TimeoutError: It did not respond within `limit_s`.
            LimitOverrunError: Its response is too long.
            ValueError: Its response is no JSON, or the request is no text.
        """
        if self.has_died and self._reader is not None:
            self.restart()  # it died while idle, which is no fault of this request
        try:
            return await self.request_once(line, limit_s)
        except (ProcessDied, TimeoutError, asyncio.LimitOverrunError, ValueError):
            self.restart()
            raise

    async def request_once(self, line: str, limit_s: float) -> dict[str, Any]:
        """As `request`, of a process that is not restarted and of no use after an error.

        The rest of a response that is too late or too long would be taken for the next one's.
        """
        reader, writer = await self._connect()
        try:
            writer.write(line.encode() + b"\n")
            async with asyncio.timeout(limit_s):
                await writer.drain()
                response: dict[str, Any] = json.loads(await reader.readuntil())
        except (ConnectionError, asyncio.IncompleteReadError):
            raise ProcessDied from None
        return response

    async def ready(self) -> None:
        """Wait until it can take a request, which waits for that by itself; raises `EngineFailed` as `request` does."""
        await self._connect()

    def start_failure(self) -> str | None:
        """Wait until the process is ready, without an event loop; give the reason why it is not, or None."""
        self._socket.settimeout(self._start_limit_s)
        with self._socket.makefile("rb") as lines:
            try:
                line = lines.readline()
            except TimeoutError:
                return f"not ready after {self._start_limit_s:g} s"
        self.greeting = json.loads(line) if line else {"failure": "the process ended"}
        failure = self.greeting.get("failure")
        self._is_ready = failure is None
        return None if failure is None else str(failure)

    def ask(self, line: str, limit_s: float) -> dict[str, Any]:
        """Give the response to a request of a process that is ready, without an event loop.

        Raises:
            EngineFailed: It ended, or did not respond within `limit_s`.
        """
        self._socket.settimeout(limit_s)
        try:
            self._socket.sendall(line.encode() + b"\n")
            with self._socket.makefile("rb") as lines:
                response: dict[str, Any] = json.loads(lines.readline())
        except (OSError, ValueError) as error:
            raise self._failure(f"gave no response: {error}") from error
        return response

    def send(self, message: Mapping[str, object]) -> None:
        """Send a message that has no response, if the process can take one."""
        if self._is_ready and self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def disconnect(self) -> None:
        """Tell the process to end. Harmless when called again."""
        self._disconnect()
        if not self._is_ready:
            self._process.terminate()  # it may be in an import, or ready without our knowing, with children

    def close(self) -> None:
        """End it and what it started; returns when all are gone. Harmless when called again."""
        self.disconnect()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._end()

    async def end(self) -> None:
        """End it and what it started at once, beside the event loop, since it may hang; returns when all are gone."""
        self._disconnect()
        await asyncio.to_thread(self._end)

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _start(self) -> None:
        self._is_ready = False
        try:
            self._socket, theirs = socket.socketpair()
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 our own module
                    [*words_that_run(self._module_name, self._python), *self._arguments, str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment_of_children() if self._variables is None else self._variables,
                )
        except OSError as error:
            raise self._failure(f"cannot start: {error}") from error

    def restart(self) -> None:
        """End it and what it started, and start it again; a pending request is to be cancelled before."""
        self._disconnect()
        self._end()
        self._start()

    def _disconnect(self) -> None:
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.transport.abort()
            # abort() closes in the loop's next turn, but waiting for the process needs it now
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._reader = self._writer = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Wait until the process is ready."""
        if self._reader is not None and self._writer is not None:
            return self._reader, self._writer
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=_LINE_BYTES)
        try:
            async with asyncio.timeout(self._start_limit_s):
                greeting = json.loads(await self._reader.readuntil())
        except TimeoutError:
            raise LateStart(*self._in_words(f"was not ready after {self._start_limit_s:g} s")) from None
        except (ConnectionError, asyncio.IncompleteReadError):
            code = await asyncio.to_thread(self._process.wait)
            raise DiedAtStart(*self._in_words(f"ended with code {code}")) from None
        if "failure" in greeting:
            raise self._failure(f"cannot start: {greeting['failure']}")
        self._is_ready = True
        return self._reader, self._writer

    def _failure(self, what: str) -> EngineFailed:
        return EngineFailed(*self._in_words(what))

    def _in_words(self, what: str) -> tuple[str, str, str]:
        return (
            f"The {self._role} {what}.",
            "It can run on every node of the run.",
            "Look at the worker's output; Python may lack a package there.",
        )
