"""The supervisor of a slot of the pool: runs the programs of responses in sandboxes, one after the other.

It is outside the sandbox, and the only trusted part: it sends inputs, receives outputs, has them compared with the
expected ones (`comparison_process`), measures each case by the program's own time (`meter`), and kills the sandbox at
the first case that fails, or when the worker cancels the request.

Invariant: neither the supervisor's time nor its memory depends on what a program sends, beyond the limit of its bytes.
Frames that no runner sends end the program.

It exchanges JSON lines with the worker over its standard input, a socket. A request is `{source, cases, limits_s,
entry_point, ...}` or `{"stop": true}`; the response is `{reason, time_s, case_runs}`, with `output` where the last case
expects none: its output is `null`. The supervisor first sends
`{"is_ready": true}` when a first sandbox has run an empty program, or `{"failure": ...}` and ends.

Run as `python -m rollpacker.rewards.sandbox.supervisor BOUNDS PARENT_PID`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import json
import marshal
import math
import os
import pathlib
import select
import signal
import socket
import sys
import time
import uuid
from contextlib import suppress
from typing import Any

from rollpacker.core.errors import WorldError
from rollpacker.processes.lifetimes import exit_when_parent_dies
from rollpacker.processes.serving import send_line, take_standard_input
from rollpacker.rewards.sandbox import comparison_process, rpc
from rollpacker.rewards.sandbox.bubblewrap import Bounds, BubblewrapLauncher
from rollpacker.rewards.sandbox.meter import Meter
from rollpacker.rewards.sandbox.runner_channel import Failed, RunnerChannel, exit_code

_WATCH_S = 0.02
"""Between measurements of a program's usage, so also what it may exceed a limit by. One takes 0.2 ms."""

_WALL_FACTOR = 10.0
"""Limit of a case's wall time, as a multiple of its limit of own time."""

_WALL_GRACE_S = 5.0

_START_LIMIT_S = 60.0
"""Wall time for a sandbox to start, on a node that is busy."""

_NUM_STARTS = 3
"""Attempts to start a sandbox, where the machine is out of processes or memory for a moment."""

_START_PAUSE_S = 0.5
"""After an attempt that failed."""

_RECEIVE_BYTES = 1 << 16

_OWN_TASKS = 3
"""Of a sandbox that runs nothing: bubblewrap, the namespace's first process, the runner. (Or supervisor and runner.)"""

_NEEDED_LATER = (dt, decimal, fractions, pathlib, uuid)
"""Decoding imports them, when `nobody` may be unable to read their files."""

_PASSED = "correct"
_STOPPED = "stopped"


class Stopped(Exception):
    """The worker cancelled the request."""


class WorkerGone(Exception):
    """The worker closed the socket."""


def main(arguments: list[str]) -> int:
    """Serve one reward worker until it closes the socket."""
    bounds, parent_pid = Bounds(**json.loads(arguments[0])), int(arguments[1])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or times of children are lost, here and, inherited, inside
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    channel = _Channel(take_standard_input())
    try:
        launcher = BubblewrapLauncher(bounds)
        exit_when_parent_dies(parent_pid)  # after a change of user, which would undo it
        scorer = _Scorer(launcher, channel)
        scorer.test_start()
    except (OSError, WorldError, KeyError, StopIteration) as error:
        channel.send({"failure": f"{type(error).__name__}: {error}"})
        return 1
    except (Stopped, WorkerGone):
        return 0
    channel.send({"is_ready": True})
    try:
        while True:
            request = channel.receive()
            if "stop" not in request:  # or it came when its program was over
                channel.send(scorer.score(request))
    except (WorkerGone, ConnectionError):
        return 0


class _Channel:
    """JSON lines to and from the worker."""

    def __init__(self, requests: socket.socket) -> None:
        self._socket = requests

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object) -> None:
        send_line(self._socket, message)

    def receive(self) -> dict[str, Any]:
        """Wait for a line. What is behind it stays in the socket, where a poll sees it.

        Raises:
            WorkerGone: The socket is closed.
        """
        line = bytearray()
        while not line.endswith(b"\n"):
            part = self._socket.recv(_RECEIVE_BYTES, socket.MSG_PEEK)
            if not part:
                raise WorkerGone
            line += self._socket.recv(part.find(b"\n") + 1 or len(part))
        message: dict[str, Any] = json.loads(line)
        return message

    def wait_for(self, other: comparison_process.Comparison, limit_s: float, watch: _Watch) -> None:
        """Wait until a comparison is over, at most so long, and check the limits of what is left of the program.

        Raises:
            Failed: It exceeds one.
            Stopped: The worker cancelled the request.
        """
        ends_s = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self, select.POLLIN)
        poll.register(other, select.POLLIN)
        while (now_s := time.monotonic()) < ends_s:
            watch.check(now_s)
            ready = poll.poll(_WATCH_S * 1000)
            if any(file == other.fileno() for file, _ in ready):
                return
            if ready:
                self.take_stop()

    def take_stop(self) -> None:
        """Read a message that the worker sent while a program runs."""
        if "stop" in self.receive():
            raise Stopped


class _Scorer:
    """Scores one program at a time."""

    def __init__(self, launcher: BubblewrapLauncher, channel: _Channel) -> None:
        self._launcher = launcher
        self._bounds = launcher.bounds
        self._channel = channel

    def test_start(self) -> None:
        """Run an empty program, to fail before the first response on a machine that cannot.

        Raises:
            WorldError: It did not start; with bubblewrap's message.
        """
        program = RunnerChannel(self._launcher, {"source": "", "entry_point": None, "has_prelude": False})
        try:
            self._begin(program)
        except Failed:
            raise WorldError(f"a sandbox does not start: {self._launcher.start_error()}") from None
        finally:
            program.kill()

    def score(self, request: dict[str, Any]) -> dict[str, Any]:
        began_s = time.monotonic()
        runs: list[tuple[int, float, bool]] = []
        sandboxes: dict[str, RunnerChannel] = {}
        output = None
        try:
            output = self._run_cases(request, sandboxes, runs)
            reason = _PASSED
        except Failed as failure:
            reason = str(failure)
        except Stopped:
            reason = _STOPPED
        finally:
            for sandbox in sandboxes.values():
                sandbox.kill()
        response = {"reason": reason, "time_s": time.monotonic() - began_s, "case_runs": runs}
        return response if output is None else response | {"output": output.decode(errors="replace")}

    def _run_cases(
        self, request: dict[str, Any], sandboxes: dict[str, RunnerChannel], runs: list[tuple[int, float, bool]]
    ) -> bytes | None:
        """Give the output of the last case, if it expects none."""
        sandboxes["program"] = program = self._open(request)
        limits_s = request["limits_s"]
        shown = None
        for index, case in enumerate(request["cases"]):
            limit_s = min(limits_s[min(index, len(limits_s) - 1)], case["time_limit_s"] or math.inf)
            memory_bytes = min(self._bounds.memory_bytes, (case["memory_limit_mb"] or math.inf) * (1 << 20))
            watch = _Watch(self._bounds, limit_s=limit_s, memory_bytes=memory_bytes)
            shown = None
            try:
                if case["kind"] == "assert":
                    if "tester" not in sandboxes:
                        sandboxes["tester"] = self._open({"source": "", "entry_point": None, "has_prelude": False})
                    self._run_assertions(program, sandboxes["tester"], case, watch)
                else:
                    given = self._run_case(program, case, watch)
                    if case.get("output", "") is None:
                        shown = given
                    else:
                        self._compare(case, given, watch)
            except Failed:
                runs.append((index, watch.stop(), False))
                raise
            runs.append((index, watch.stop(), True))
        return shown

    def _open(self, job: dict[str, Any]) -> RunnerChannel:
        """Start a sandbox; retried where the machine was too busy."""
        for _ in range(_NUM_STARTS):
            with suppress(Failed, OSError):
                return self._started(job)
            time.sleep(_START_PAUSE_S)
        raise Failed("checker_crashed")

    def _started(self, job: dict[str, Any]) -> RunnerChannel:
        sandbox = RunnerChannel(self._launcher, job)
        try:
            self._begin(sandbox)
        except BaseException:
            sandbox.kill()
            raise
        return sandbox

    def _begin(self, sandbox: RunnerChannel) -> None:
        """Wait until the runner is ready for cases."""
        watch = _StartWatch()
        while _next_frame((sandbox,), watch, self._channel)[1][0] != "B":
            pass
        sandbox.begin()

    def _run_case(self, program: RunnerChannel, case: dict[str, Any], watch: _Watch) -> bytes:
        """Give the program's output."""
        sent = {"kind": case["kind"], "cpu_s": watch.cpu_s}
        if case["kind"] == "stdin":
            sent["input"] = case["input"].encode(errors="replace")
        else:
            sent["args"] = case["args"]
        program.send("K", marshal.dumps(sent))
        watch.start((program,))
        answer, code = b"", 0
        while True:
            letter, body = _next_frame((program,), watch, self._channel)[1]
            if letter == "R":
                raise Failed(_reason_of(body))
            if letter == "V":
                answer = body
            if letter == "E":
                code = exit_code(body)
                break
        program.drain()
        if code or (case["kind"] == "call" and not answer):
            raise Failed("error")
        return bytes(program.output) if case["kind"] == "stdin" else answer

    def _compare(self, case: dict[str, Any], given: bytes, watch: _Watch) -> None:
        """Compare an answer with the expected one; what the program left running is still bounded.

        Raises:
            Failed: It is not right.
        """
        watch.stop()
        result = comparison_process.result_at_once(case, given)
        if result is None:
            try:
                comparison = comparison_process.Comparison(case, given)
            except OSError:  # the machine is out of processes
                raise Failed("checker_crashed") from None
            watch.leave_out(comparison.pid)
            try:
                self._channel.wait_for(comparison, comparison_process.LIMIT_S, watch)
            finally:
                result = comparison.close()
        if not result:
            raise Failed("checker_crashed" if result is None else "wrong_answer")

    def _run_assertions(
        self, program: RunnerChannel, tester: RunnerChannel, case: dict[str, Any], watch: _Watch
    ) -> None:
        """Run tests in one sandbox and the program in another; the limits are those of both together."""
        program.send("K", marshal.dumps({"kind": "serve", "cpu_s": watch.cpu_s}))
        watch.start((program, tester))
        has_begun = has_passed = False
        while True:
            sandbox, (letter, body) = _next_frame((program, tester), watch, self._channel)
            match letter:
                case "M" if sandbox is program and not has_begun:
                    has_begun = True
                    sent = {"kind": "test", "cpu_s": watch.cpu_s, "source": case["source"]}
                    tester.send("K", marshal.dumps(sent))
                case "M":
                    (tester if sandbox is program else program).send("M", body)
                case "R":
                    reason = _reason_of(body)
                    raise Failed("wrong_answer" if sandbox is tester and body == b"AssertionError" else reason)
                case "V" if sandbox is tester:
                    has_passed = True
                case "E" if sandbox is tester:
                    break
                case "E":
                    raise Failed("error")  # the program ended during the tests
        if not has_passed:
            raise Failed("error")
        program.send("M", rpc.END)
        while _next_frame((program,), watch, self._channel)[1][0] != "E":
            pass


class _StartWatch:
    """Bounds the start of a sandbox."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _START_LIMIT_S

    def check(self, now_s: float) -> None:
        if now_s > self._ends_s:
            raise Failed("checker_crashed")


class _Watch:
    """Bounds one case."""

    def __init__(self, bounds: Bounds, *, limit_s: float, memory_bytes: float) -> None:
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._processes = bounds.processes
        self._meter: Meter | None = None
        self._looked_s = time.monotonic()
        self._time_s: float | None = None
        self.cpu_s = math.ceil(limit_s) + 2
        """For the kernel to kill each process, should the supervisor be slow."""

    def start(self, sandboxes: tuple[RunnerChannel, ...]) -> None:
        self._sandboxes = sandboxes
        self._meter = Meter({sandbox.top_pid for sandbox in sandboxes})
        self._most_tasks = self._processes + _OWN_TASKS * len(sandboxes)

    def check(self, now_s: float) -> None:
        """Check the limits, if it is time to; a program that never stops sending is checked as often."""
        if now_s - self._looked_s < _WATCH_S:
            return
        self._looked_s = now_s
        assert self._meter is not None
        usage = self._meter.read()
        if usage.memory_bytes + sum(each.kernel_bytes() for each in self._sandboxes) > self._memory_bytes:
            raise Failed("memory")
        if usage.num_tasks > self._most_tasks:
            raise Failed("processes")
        is_late = usage.own_s > self._limit_s or usage.wall_s > _WALL_FACTOR * self._limit_s + _WALL_GRACE_S
        if is_late and self._time_s is None:
            raise Failed("timeout")

    def leave_out(self, pid: int) -> None:
        """Count neither the supervisor nor its child of this pid: with `rlimits` both are in the program's tree."""
        assert self._meter is not None
        self._meter.left_out = {os.getpid(), pid}

    def stop(self) -> float:
        """Stop the clock, once, and give the case's own time; its memory and processes can still be checked."""
        if self._time_s is None:
            self._time_s = self._meter.read().own_s if self._meter else 0.0
        return self._time_s


def _next_frame(
    sandboxes: tuple[RunnerChannel, ...], watch: _Watch | _StartWatch, channel: _Channel
) -> tuple[RunnerChannel, tuple[str, bytes]]:
    """Wait for a frame of one of the runners, and check the limits meanwhile."""
    while True:
        watch.check(time.monotonic())
        for sandbox in sandboxes:
            if (frame := sandbox.next_frame()) is not None:
                return sandbox, frame
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        for sandbox in sandboxes:
            sandbox.register(poll)
        ready = poll.poll(_WATCH_S * 1000)
        if any(file == channel.fileno() for file, _ in ready):
            channel.take_stop()
        for sandbox in sandboxes:
            sandbox.exchange()


def _reason_of(error_name: bytes) -> str:
    return "memory" if error_name == b"MemoryError" else "error"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
