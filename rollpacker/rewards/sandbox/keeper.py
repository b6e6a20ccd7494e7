"""The keeper: the program beside each slot of the pool that runs responses in sandboxes, one after the other.

It is outside, and all that is trusted: it sends inputs in, takes answers out, has them compared with what was expected
(`comparing`), keeps the time of each case by the program's own clock (`meter`), and kills the sandbox at the first case
that is not passed, or when the worker says that nobody needs it any more.

Invariant: a program's bytes decide neither how long the keeper works nor how much memory it takes, beyond the limit of
their number. Frames that no runner sends end the program.

Speaks JSON lines with the worker, over the socket that is its standard input. A request is `{source, cases, limits_s,
entry_point, ...}` or `{"stop": true}`; the answer is `{reason, time_s, case_runs}`. The keeper first says
`{"is_ready": true}` when a first sandbox has run an empty program, or `{"failure": ...}` and ends.

Run as `python -m rollpacker.rewards.sandbox.keeper BOUNDS PARENT_PID`.
"""

from __future__ import annotations

import datetime as dt
import decimal
import fractions
import json
import marshal
import math
import os
import select
import signal
import socket
import sys
import time
from typing import Any

from rollpacker.core.errors import WorldError
from rollpacker.rewards.processes import exit_when_parent_dies
from rollpacker.rewards.sandbox import comparing, remote
from rollpacker.rewards.sandbox.bubblewrap import Bounds, BubblewrapLauncher
from rollpacker.rewards.sandbox.meter import Meter
from rollpacker.rewards.sandbox.talk import Failed, Talk, exit_code

_WATCH_S = 0.02
"""Between looks at what a program has used: what it may take beyond a limit. A look takes 0.2 ms."""

_WALL_FACTOR = 10.0
"""A case that is not over after so many times its limit of own time, wall time, ends: nobody waits for ever."""

_WALL_GRACE_S = 5.0

_START_LIMIT_S = 60.0
"""Wall time for a sandbox to start, on a node that is busy."""

_NUM_STARTS = 3
"""Attempts to start a sandbox, where the machine has no process or memory left for a moment."""

_RECEIVE_BYTES = 1 << 16

_OWN_TASKS = 3
"""Of a sandbox that runs nothing: bubblewrap, the namespace's first process, the runner. (Or keeper and runner.)"""

_NEEDED_LATER = (dt, decimal, fractions)
"""Decoding imports them, when `nobody` may not be able to read their files any more."""

_PASSED = "correct"
_STOPPED = "stopped"


class Stopped(Exception):
    """Nobody needs the program's reward any more."""


class WorkerGone(Exception):
    """The worker closed the socket."""


def main(arguments: list[str]) -> int:
    """Serve one reward worker until it closes the socket."""
    bounds, parent_pid = Bounds(**json.loads(arguments[0])), int(arguments[1])
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # or times of children are lost, here and, inherited, inside
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    channel = _Channel(requests)
    try:
        enclosure = BubblewrapLauncher(bounds)
        exit_when_parent_dies(parent_pid)  # after a change of user, which would undo it
        judge = _Judge(enclosure, channel)
        judge.try_out()
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
                channel.send(judge.judge(request))
    except (WorkerGone, ConnectionError):
        return 0


class _Channel:
    """JSON lines to and from the worker."""

    def __init__(self, requests: socket.socket) -> None:
        self._socket = requests
        self._received = bytearray()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> dict[str, Any]:
        """Wait for a line.

        Raises:
            WorkerGone: There is none to come.
        """
        while (end := self._received.find(b"\n")) < 0:
            part = self._socket.recv(_RECEIVE_BYTES)
            if not part:
                raise WorkerGone
            self._received += part
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        message: dict[str, Any] = json.loads(line)
        return message

    def wait_for(self, other: comparing.Comparison, limit_s: float) -> None:
        """Wait until a file of this machine can be read.

        Raises:
            Stopped: The worker said so meanwhile.
        """
        ends_s = time.monotonic() + limit_s
        poll = select.poll()
        poll.register(self, select.POLLIN)
        poll.register(other, select.POLLIN)
        while ready := poll.poll(max(0.0, ends_s - time.monotonic()) * 1000):
            if any(file == other.fileno() for file, _ in ready):
                return
            self.take_stop()

    def take_stop(self) -> None:
        """Read what the worker says while a program runs."""
        if "stop" in self.receive():
            raise Stopped


class _Judge:
    """Judges one program at a time."""

    def __init__(self, enclosure: BubblewrapLauncher, channel: _Channel) -> None:
        self._enclosure = enclosure
        self._bounds = enclosure.bounds
        self._channel = channel

    def try_out(self) -> None:
        """Run an empty program, so that a machine that cannot is known before the first response.

        Raises:
            WorldError: It did not start, with what bubblewrap says to it.
        """
        program = Talk(self._enclosure, {"source": "", "entry_point": None, "has_prelude": False})
        try:
            self._begin(program)
        except Failed:
            raise WorldError(f"a sandbox does not start: {self._enclosure.complaint()}") from None
        finally:
            program.kill()

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        began_s = time.monotonic()
        runs: list[tuple[int, float, bool]] = []
        sandboxes: dict[str, Talk] = {}
        try:
            self._run_cases(request, sandboxes, runs)
            reason = _PASSED
        except Failed as failure:
            reason = str(failure)
        except Stopped:
            reason = _STOPPED
        finally:
            for sandbox in sandboxes.values():
                sandbox.kill()
        return {"reason": reason, "time_s": time.monotonic() - began_s, "case_runs": runs}

    def _run_cases(
        self, request: dict[str, Any], sandboxes: dict[str, Talk], runs: list[tuple[int, float, bool]]
    ) -> None:
        sandboxes["program"] = program = self._open(request)
        limits_s = request["limits_s"]
        for index, case in enumerate(request["cases"]):
            limit_s = min(limits_s[min(index, len(limits_s) - 1)], case["time_limit_s"] or math.inf)
            memory_bytes = min(self._bounds.memory_bytes, (case["memory_limit_mb"] or math.inf) * (1 << 20))
            watch = _Watch(self._bounds, limit_s=limit_s, memory_bytes=memory_bytes)
            given: bytes | None = None
            try:
                if case["kind"] == "assert":
                    if "tester" not in sandboxes:
                        sandboxes["tester"] = self._open({"source": "", "entry_point": None, "has_prelude": False})
                    self._run_assertions(program, sandboxes["tester"], case, watch)
                else:
                    given = self._run_case(program, case, watch)
            except Failed:
                runs.append((index, watch.stop(), False))
                raise
            time_s = watch.stop()
            failure = None if given is None else self._compare(case, given)
            runs.append((index, time_s, failure is None))
            if failure is not None:
                raise Failed(failure)

    def _open(self, job: dict[str, Any]) -> Talk:
        """Start a sandbox; once more where the machine was too busy to."""
        for _ in range(_NUM_STARTS):
            sandbox = Talk(self._enclosure, job)
            try:
                self._begin(sandbox)
            except (Failed, OSError):
                sandbox.kill()
            except BaseException:
                sandbox.kill()
                raise
            else:
                return sandbox
        raise Failed("checker_crashed")

    def _begin(self, sandbox: Talk) -> None:
        """Wait until cases can be run."""
        watch = _StartWatch()
        while _next_frame((sandbox,), watch, self._channel)[1][0] != "B":
            pass
        sandbox.begin()

    def _run_case(self, program: Talk, case: dict[str, Any], watch: _Watch) -> bytes:
        """Give what the program answered."""
        sent = {"kind": case["kind"], "cpu_s": watch.cpu_s}
        if case["kind"] == "stdin":
            sent["input"] = case["input"].encode(errors="replace")
        else:
            sent["args"] = case["args"]
        program.tell("K", marshal.dumps(sent))
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

    def _compare(self, case: dict[str, Any], given: bytes) -> str | None:
        """Say why an answer is not right; None: it is."""
        result = comparing.result_at_once(case, given)
        if result is None:
            comparison = comparing.Comparison(case, given)
            try:
                self._channel.wait_for(comparison, comparing.LIMIT_S)
            finally:
                result = comparison.close()
        return {True: None, False: "wrong_answer", None: "checker_crashed"}[result]

    def _run_assertions(self, program: Talk, tester: Talk, case: dict[str, Any], watch: _Watch) -> None:
        """Let the tester ask the program; both are watched as one."""
        program.tell("K", marshal.dumps({"kind": "serve", "cpu_s": watch.cpu_s}))
        watch.start((program, tester))
        has_begun = has_passed = False
        while True:
            sandbox, (letter, body) = _next_frame((program, tester), watch, self._channel)
            match letter:
                case "M" if sandbox is program and not has_begun:
                    has_begun = True
                    sent = {"kind": "test", "cpu_s": watch.cpu_s, "source": case["source"]}
                    tester.tell("K", marshal.dumps(sent))
                case "M":
                    (tester if sandbox is program else program).tell("M", body)
                case "R":
                    reason = _reason_of(body)
                    raise Failed("wrong_answer" if sandbox is tester and body == b"AssertionError" else reason)
                case "V" if sandbox is tester:
                    has_passed = True
                case "E" if sandbox is tester:
                    break
                case "E":
                    raise Failed("error")  # the program left while it was still asked
        if not has_passed:
            raise Failed("error")
        program.tell("M", remote.END)
        while _next_frame((program,), watch, self._channel)[1][0] != "E":
            pass


class _StartWatch:
    """Bounds the start of a sandbox."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _START_LIMIT_S

    def look(self, now_s: float) -> None:
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
        self.cpu_s = math.ceil(limit_s) + 2
        """For the kernel to end each process, should the keeper be slow to."""

    def start(self, sandboxes: tuple[Talk, ...]) -> None:
        self._sandboxes = sandboxes
        self._meter = Meter({sandbox.top_pid for sandbox in sandboxes})
        self._most_tasks = self._processes + _OWN_TASKS * len(sandboxes)

    def look(self, now_s: float) -> None:
        """Keep the limits, if it is time to: a program that always says something is looked at no less."""
        if now_s - self._looked_s < _WATCH_S:
            return
        self._looked_s = now_s
        assert self._meter is not None
        usage = self._meter.read()
        if usage.memory_bytes + sum(each.held_bytes() for each in self._sandboxes) > self._memory_bytes:
            raise Failed("memory")
        if usage.num_tasks > self._most_tasks:
            raise Failed("processes")
        if usage.own_s > self._limit_s or usage.wall_s > _WALL_FACTOR * self._limit_s + _WALL_GRACE_S:
            raise Failed("timeout")

    def stop(self) -> float:
        """Give the case's own time so far."""
        return self._meter.read().own_s if self._meter else 0.0


def _next_frame(
    sandboxes: tuple[Talk, ...], watch: _Watch | _StartWatch, channel: _Channel
) -> tuple[Talk, tuple[str, bytes]]:
    """Wait for a frame of one of the runners, and keep the limits meanwhile."""
    while True:
        watch.look(time.monotonic())
        for sandbox in sandboxes:
            if (frame := sandbox.take_frame()) is not None:
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
