"""Starts processes that keep checks, talks to them, replaces those that die, and ends them.

Invariant: one process has at most one request, and every request of a judge gets one answer: its own, `timeout`, or
`checker_crashed`. The time limit is kept by the process's keeper (see `judging_process`), from the start of the check
and not of its queueing; here is only a second one, for a keeper that died or was stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rollpacker.core.errors import EngineFailed
from rollpacker.rewards.judgement import CHECKER_CRASHED, TIMEOUT, Judgement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

START_LIMIT_S = 120.0
"""To import sympy from a slow network file system, on a node where many start at once."""

KEEPER_GRACE_S = 10.0
"""How much longer than the check's limit a keeper may stay silent, on a node that is busy."""

_LINE_BYTES = 1 << 24
"""The longest answer: of a sandbox with a hundred thousand test cases."""

STOP_LIMIT_S = 2.0
"""Keepers answer a closed socket at once; one that does not is killed."""


class TimedJudgement(NamedTuple):
    """A judgement and the seconds that the check took."""

    judgement: Judgement
    time_s: float


class ProcessDied(Exception):
    """It ended before it answered; another one has been started."""


class KeptProcess:
    """A process that answers JSON lines, started at once and restarted when it dies. Owned by one task.

    Args:
        module_name: Run with the arguments and this process's id; its socket is its standard input.
        arguments: As words.
    """

    def __init__(self, module_name: str, arguments: Sequence[str]) -> None:
        self._module_name = module_name
        self._arguments = arguments
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._start()

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: str, limit_s: float) -> dict[str, Any]:
        """Give the answer to a request, both as JSON.

        Raises:
            EngineFailed: The process cannot start; then no request could ever be answered.
            ProcessDied: It ended.
            TimeoutError: It was silent for `limit_s`; another one has been started. Likewise for the next two.
            LimitOverrunError: Its answer is too long.
            ValueError: Its answer is no JSON, or the request is no text.
        """
        if self._process.poll() is not None and self._reader is not None:
            self._restart()  # it died while idle, which is no fault of this request
        reader, writer = await self._connect()
        try:
            writer.write(request.encode() + b"\n")
            async with asyncio.timeout(limit_s):
                await writer.drain()
                answer: dict[str, Any] = json.loads(await reader.readuntil())
        except (ConnectionError, asyncio.IncompleteReadError):
            self._restart()
            raise ProcessDied from None
        except (TimeoutError, asyncio.LimitOverrunError, ValueError):
            self._restart()  # or the rest of this answer would be taken for the next one's
            raise
        return answer

    def tell(self, message: Mapping[str, object]) -> None:
        """Send what has no answer, if there is a process to send it to."""
        if self._writer is not None:
            self._writer.write(json.dumps(message).encode() + b"\n")

    def disconnect(self) -> None:
        """Tell the process to end. Harmless when called again."""
        is_ready = self._writer is not None
        self._disconnect()
        if not is_ready:
            self._process.kill()  # it has no children yet that would outlive it, and may be deep in an import

    def close(self) -> None:
        """End it and what it started; returns when all are gone. Harmless when called again."""
        self.disconnect()
        try:
            self._process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # the kernel kills what it started with it
            self._process.wait()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 our own interpreter and module
                    [sys.executable, "-P", "-m", self._module_name, *self._arguments, str(os.getpid())],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env=environment_of_children(),
                )
            except OSError as error:
                raise self._failure(f"cannot start: {error}") from error

    def _restart(self) -> None:
        self._disconnect()
        self._process.kill()
        self._process.wait()
        self._start()

    def _disconnect(self) -> None:
        if self._writer is None:
            self._socket.close()
        else:
            self._writer.transport.abort()
            # abort() closes in the loop's next turn, but what waits for the process wants it now
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._reader = self._writer = None

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Wait until the process is ready."""
        if self._reader is not None and self._writer is not None:
            return self._reader, self._writer
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=_LINE_BYTES)
        try:
            async with asyncio.timeout(START_LIMIT_S):
                greeting = json.loads(await self._reader.readuntil())
        except TimeoutError:
            raise self._failure(f"was not ready after {START_LIMIT_S:.0f} s") from None
        except (ConnectionError, asyncio.IncompleteReadError):
            raise self._failure(f"ended with code {await asyncio.to_thread(self._process.wait)}") from None
        if "failure" in greeting:
            raise self._failure(f"cannot start: {greeting['failure']}")
        return self._reader, self._writer

    def _failure(self, what: str) -> EngineFailed:
        return EngineFailed(
            f"The reward process {what}",
            "Allowed: a reward that can run on every node",
            "Look at the output of the reward worker; the environment may lack a package",
        )


class JudgingProcess(KeptProcess):
    """One keeper with its judge (see `judging_process`)."""

    def __init__(self, module_name: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        super().__init__("rollpacker.rewards.judging_process", [module_name, str(timeout_s)])

    async def judge(self, request: Mapping[str, object]) -> TimedJudgement:
        """Judge one response; the mapping holds the arguments of the reward's `judge`.

        Raises:
            EngineFailed: The process cannot start; then no request could ever be judged.
        """
        limit_s = self._timeout_s + KEEPER_GRACE_S
        try:
            fields = await self.ask(json.dumps(request), limit_s)
        except ProcessDied:
            return TimedJudgement(CHECKER_CRASHED, 0.0)
        except TimeoutError:
            return TimedJudgement(TIMEOUT, limit_s)
        return TimedJudgement(Judgement(fields["reward"], fields["reason"]), fields["time_s"])


def environment_of_children() -> dict[str, str]:
    """Let the process find this very package, wherever the parent did, and keep numeric libraries to one thread."""
    package = importlib.util.find_spec("rollpacker")
    locations = package.submodule_search_locations if package else None
    roots = [str(Path(location).resolve().parent) for location in locations or ()]
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join([*roots, inherited] if inherited else roots)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
