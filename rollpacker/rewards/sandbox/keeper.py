"""The keeper: the program beside each seat of the pool that runs responses in sandboxes, one after the other.

It is outside, and all that is trusted: it sends inputs in, takes answers out, compares them with what was expected,
keeps the time of each case by the program's own clock (`meter`), and kills the sandbox at the first case that is not
passed, or when the worker says that nobody needs it any more.

Speaks JSON lines with the worker, over the socket that is its standard input. A request is `{source, cases, limits_s,
entry_point, ...}` or `{"stop": true}`; the answer is `{reason, time_s, case_runs}`. The keeper first says
`{"is_ready": true}` when a first sandbox has run an empty program, or `{"failure": ...}` and ends.

Run as `python -m rollpacker.rewards.sandbox.keeper BOUNDS PARENT_PID`.
"""

from __future__ import annotations

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
from rollpacker.rewards.sandbox import remote
from rollpacker.rewards.sandbox.comparison import is_one_of, is_same_text
from rollpacker.rewards.sandbox.enclosure import Bounds, Enclosure
from rollpacker.rewards.sandbox.meter import Meter
from rollpacker.rewards.sandbox.values import Opaque, decode

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

_ANSWER_BYTES, _ANSWER_FACTOR = 1 << 16, 16
"""A value that was returned may take so many bytes, and so many times the expected one's: tags and white space. What is
larger is wrong, and would cost the keeper memory."""

_OWN_TASKS = 3
"""Of a sandbox that runs nothing: bubblewrap, the namespace's first process, the runner. (Or keeper and runner.)"""

_NEEDED_LATER = (decimal, fractions)
"""Decoding imports them, when `nobody` may not be able to read their files any more."""

_PASSED = "correct"
_STOPPED = "stopped"


class Stopped(Exception):
    """Nobody needs the program's reward any more."""


class WorkerGone(Exception):
    """The worker closed the socket."""


class _Failed(Exception):
    """The program failed a case; says why in a word."""


def main(arguments: list[str]) -> int:
    """Serve one reward worker until it closes the socket."""
    bounds, parent_pid = Bounds(**json.loads(arguments[0])), int(arguments[1])
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    channel = _Channel(requests)
    try:
        enclosure = Enclosure(bounds)
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


class _Judge:
    """Judges one program at a time."""

    def __init__(self, enclosure: Enclosure, channel: _Channel) -> None:
        self._enclosure = enclosure
        self._bounds = enclosure.bounds
        self._channel = channel

    def try_out(self) -> None:
        """Run an empty program, so that a machine that cannot is known before the first response.

        Raises:
            WorldError: It did not start, with what bubblewrap says to it.
        """
        program = _Sandbox(self._enclosure, self._channel, {"source": "", "entry_point": None, "has_prelude": False})
        try:
            program.begin()
        except _Failed:
            raise WorldError(f"a sandbox does not start: {self._enclosure.complaint()}") from None
        finally:
            program.kill()

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        began_s = time.monotonic()
        runs: list[tuple[int, float, bool]] = []
        sandboxes: dict[str, _Sandbox] = {}
        try:
            self._run_cases(request, sandboxes, runs)
            reason = _PASSED
        except _Failed as failure:
            reason = str(failure)
        except Stopped:
            reason = _STOPPED
        finally:
            for sandbox in sandboxes.values():
                sandbox.kill()
        return {"reason": reason, "time_s": time.monotonic() - began_s, "case_runs": runs}

    def _run_cases(
        self, request: dict[str, Any], sandboxes: dict[str, _Sandbox], runs: list[tuple[int, float, bool]]
    ) -> None:
        sandboxes["program"] = program = self._open(request)
        limits_s = request["limits_s"]
        for index, case in enumerate(request["cases"]):
            limit_s = min(limits_s[min(index, len(limits_s) - 1)], case["time_limit_s"] or math.inf)
            memory_bytes = min(self._bounds.memory_bytes, (case["memory_limit_mb"] or math.inf) * (1 << 20))
            watch = _Watch(self._bounds, limit_s=limit_s, memory_bytes=memory_bytes)
            try:
                if case["kind"] == "assert":
                    if "tester" not in sandboxes:
                        sandboxes["tester"] = self._open({"source": "", "entry_point": None, "has_prelude": False})
                    self._run_assertions(program, sandboxes["tester"], case, watch)
                else:
                    self._run_case(program, case, watch)
            except _Failed:
                runs.append((index, watch.stop(), False))
                raise
            runs.append((index, watch.stop(), True))

    def _open(self, job: dict[str, Any]) -> _Sandbox:
        """Start a sandbox; once more where the machine was too busy to."""
        for _ in range(_NUM_STARTS):
            sandbox = _Sandbox(self._enclosure, self._channel, job)
            try:
                sandbox.begin()
            except _Failed:
                sandbox.kill()
            except BaseException:
                sandbox.kill()
                raise
            else:
                return sandbox
        raise _Failed("checker_crashed")

    def _run_case(self, program: _Sandbox, case: dict[str, Any], watch: _Watch) -> None:
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
                raise _Failed(_reason_of(body))
            if letter == "V":
                answer = body
            if letter == "E":
                code = int(body)
                break
        program.drain()
        if code or (case["kind"] == "call" and not answer):
            raise _Failed("error")
        if case["kind"] == "stdin":
            is_right = is_same_text(program.output.decode(errors="replace"), case["output"])
        else:
            is_right = is_one_of(_value_of(answer, case["accepted"]), case["accepted"])
        if not is_right:
            raise _Failed("wrong_answer")

    def _run_assertions(self, program: _Sandbox, tester: _Sandbox, case: dict[str, Any], watch: _Watch) -> None:
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
                    raise _Failed("wrong_answer" if sandbox is tester and body == b"AssertionError" else reason)
                case "V" if sandbox is tester:
                    has_passed = True
                case "E" if sandbox is tester:
                    break
                case "E":
                    raise _Failed("error")  # the program left while it was still asked
        if not has_passed:
            raise _Failed("error")
        program.tell("M", remote.END)
        while _next_frame((program,), watch, self._channel)[1][0] != "E":
            pass


class _Sandbox:
    """The talk with one runner."""

    def __init__(self, enclosure: Enclosure, channel: _Channel, job: dict[str, Any]) -> None:
        bounds = enclosure.bounds
        self.output = bytearray()
        """What the case's process wrote."""
        self._most_bytes = bounds.output_bytes
        self._channel = channel
        self._reports = bytearray()
        self._num_bytes = 0
        self._enclosed = enclosure.start()
        self._to_send = bytearray(self._enclosed.first_words)
        own = {"limits": bounds.resource_limits(), "packages": bounds.packages}
        kept = {name: job[name] for name in ("source", "entry_point", "has_prelude")}
        self.tell("J", marshal.dumps(own | kept))

    @property
    def top_pid(self) -> int:
        return self._enclosed.top_pid

    def begin(self) -> None:
        """Wait until cases can be run."""
        watch = _StartWatch()
        while _next_frame((self,), watch, self._channel)[1][0] != "B":
            pass

    def tell(self, letter: str, body: bytes) -> None:
        """Send a frame as soon as the runner takes it; a new case begins to count its bytes."""
        if letter == "K":
            self.output.clear()
            self._num_bytes = 0
        self._to_send += letter.encode() + len(body).to_bytes(4, "big") + body

    def register(self, poll: select.poll) -> None:
        poll.register(self._enclosed.output, select.POLLIN)
        poll.register(self._enclosed.reports, select.POLLIN)
        if self._to_send:
            poll.register(self._enclosed.control, select.POLLOUT)

    def take_frame(self) -> tuple[str, bytes] | None:
        reports = self._reports
        if len(reports) < _HEAD_BYTES:
            return None
        end = _HEAD_BYTES + int.from_bytes(reports[1:_HEAD_BYTES], "big")
        if end > self._most_bytes:
            raise _Failed("output")
        if len(reports) < end:
            return None
        frame = chr(reports[0]), bytes(reports[_HEAD_BYTES:end])
        del reports[:end]
        return frame

    def exchange(self) -> None:
        """Write and read what can be without waiting."""
        if self._to_send:
            try:
                del self._to_send[: os.write(self._enclosed.control, self._to_send[:_PIPE_BYTES])]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                self._to_send.clear()  # the end of the reports says what it means
        self._read_into(self.output, self._enclosed.output)
        if self._read_into(self._reports, self._enclosed.reports) == b"" and not self._reports:
            raise _Failed("error")  # the runner is gone

    def drain(self) -> None:
        """Read what the case's process wrote before it ended."""
        while self._read_into(self.output, self._enclosed.output):
            pass

    def kill(self) -> None:
        self._enclosed.kill()

    def _read_into(self, buffer: bytearray, file: int) -> bytes | None:
        """Give what was read; nothing at the end, None where nothing is there yet."""
        try:
            part = os.read(file, _PIPE_BYTES)
        except BlockingIOError:
            return None
        buffer += part
        self._num_bytes += len(part)
        if self._num_bytes > self._most_bytes:
            raise _Failed("output")
        return part


_HEAD_BYTES = 5
"""A letter and a length."""

_PIPE_BYTES = 1 << 16


class _StartWatch:
    """Bounds the start of a sandbox."""

    def __init__(self) -> None:
        self._ends_s = time.monotonic() + _START_LIMIT_S

    def look(self) -> None:
        if time.monotonic() > self._ends_s:
            raise _Failed("checker_crashed")


class _Watch:
    """Bounds one case."""

    def __init__(self, bounds: Bounds, *, limit_s: float, memory_bytes: float) -> None:
        self._limit_s = limit_s
        self._memory_bytes = memory_bytes
        self._processes = bounds.processes
        self._meter: Meter | None = None
        self.cpu_s = math.ceil(limit_s) + 2
        """For the kernel to end each process, should the keeper be slow to."""

    def start(self, sandboxes: tuple[_Sandbox, ...]) -> None:
        self._meter = Meter({sandbox.top_pid for sandbox in sandboxes})
        self._most_tasks = self._processes + _OWN_TASKS * len(sandboxes)

    def look(self) -> None:
        assert self._meter is not None
        usage = self._meter.read()
        if usage.own_s > self._limit_s or usage.wall_s > _WALL_FACTOR * self._limit_s + _WALL_GRACE_S:
            raise _Failed("timeout")
        if usage.memory_bytes > self._memory_bytes:
            raise _Failed("memory")
        if usage.num_tasks > self._most_tasks:
            raise _Failed("processes")

    def stop(self) -> float:
        """Give the case's own time so far."""
        return self._meter.read().own_s if self._meter else 0.0


def _next_frame(
    sandboxes: tuple[_Sandbox, ...], watch: _Watch | _StartWatch, channel: _Channel
) -> tuple[_Sandbox, tuple[str, bytes]]:
    """Wait for a frame of one of the runners, and keep the limits meanwhile."""
    looked_s = time.monotonic()
    while True:
        for sandbox in sandboxes:
            if (frame := sandbox.take_frame()) is not None:
                return sandbox, frame
        poll = select.poll()
        poll.register(channel, select.POLLIN)
        for sandbox in sandboxes:
            sandbox.register(poll)
        ready = poll.poll(_WATCH_S * 1000)
        if any(file == channel.fileno() for file, _ in ready) and "stop" in channel.receive():
            raise Stopped
        for sandbox in sandboxes:
            sandbox.exchange()
        now_s = time.monotonic()
        if now_s - looked_s >= _WATCH_S:
            looked_s = now_s
            watch.look()


def _reason_of(error_name: bytes) -> str:
    return "memory" if error_name == b"MemoryError" else "error"


def _value_of(answer: bytes, accepted: list[object]) -> object:
    """Decode what a function returned; malformed data equals nothing."""
    if len(answer) > _ANSWER_BYTES + _ANSWER_FACTOR * len(json.dumps(accepted)):
        return Opaque("too large")
    try:
        return decode(json.loads(answer))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError):
        return Opaque("malformed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
