"""The process that runs checks that may hang: a supervisor that never hangs, and a scorer that it can kill.

    reward worker ──socket──> supervisor ──socket──> scorer
                              (imports once,     (forked from the supervisor,
                               keeps time)        with all imports done)

The supervisor imports the function, forks a scorer and passes requests on, one at a time. When the scorer gives no
response within the limit, or dies, the supervisor kills it by its id (its own child, not yet waited for, so the id is
not reused), responds with `timeout` or `checker_crashed`, and forks another. A fork takes milliseconds where a new
interpreter with sympy takes seconds, so a check that hangs does not delay the next ones. Threads that an import starts
are not in the scorer.

Invariant: no process outlives the reward worker's, however that dies, and whatever a check does. The supervisor exits
when its socket closes, and the kernel signals it when its parent dies. The scorer may be in C code, where Python
handles no signals, so the kernel kills it when the supervisor dies (PR_SET_PDEATHSIG). What a check started itself, a
compiler say, is killed with its scorer; what the import of the function started, a server say, with the supervisor.

What a function and the programs that it starts print, on standard output or error, goes through a pipe to the
supervisor, which writes the first `_MOST_PRINTED_BYTES` to its own standard error: the log of the reward.

Both sides speak JSON lines: requests are the arguments of `functions.PARAMETERS`, responses `{reward, reason, parts,
problem, time_s}`. The supervisor first sends `{"is_ready": true, "needed": [...]}`, with the parameters that the
function names without a default, or `{"failure": ..., "has_remedy": ...}` and ends: whether the failure says what to
do. A process that a function or its import forks, and that raises or returns into this module, sends nothing and exits
there.

Run as `python -m rollpacker.rewards.scoring_process FUNCTION TIMEOUT_S PARENT_PID`, with the socket as standard input.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from rollpacker.config.python_names import UnusableFunction
from rollpacker.core.errors import RollpackerError
from rollpacker.processes.lifetimes import (
    become_reaper,
    children_of,
    exit_at_sigterm,
    exit_when_parent_dies,
    kill_descendants,
    limit_resource,
    set_parent_death_signal,
)
from rollpacker.processes.serving import OwnSocket, send_line, take_standard_input
from rollpacker.rewards.functions import Outcome, RewardFunction, load_function
from rollpacker.rewards.scores import CHECKER_CRASHED, TIMEOUT

SCORER_MEMORY_BYTES = 4 << 30
"""Address space of a scorer beyond that of its imports. A check with sympy needs 0.2 GB; one that wants 4 GB should
fail alone, not take the node's memory."""

_MAX_CHECKS_PER_SCORER = 1000
"""Then a fresh one is forked, so that caches and leaks of the checked libraries stay small. Costs milliseconds."""

_RECEIVE_BYTES = 1 << 16

_MOST_PRINTED_BYTES = 1 << 16
"""What a supervisor passes on: enough to find a mistake, and no log that grows with each response."""

_NO_MORE = b"\nWhat the reward function prints from here on is dropped.\n"


def main(arguments: list[str]) -> int:
    """Serve one reward worker until it closes the socket."""
    source, timeout_s, parent_pid = arguments
    requests = take_standard_input()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    become_reaper()
    exit_at_sigterm()
    exit_when_parent_dies(int(parent_pid))
    sys.dont_write_bytecode = True  # the folder of a user's file stays as it is
    assert isinstance(sys.stdout, io.TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # or what a check prints before it is killed would be lost
    try:
        function = load_function(source)
    except UnusableFunction as error:
        send_line(requests, {"failure": str(error), "has_remedy": isinstance(error.__cause__, RollpackerError)})
        return 1
    gc.freeze()  # or every garbage collection of a scorer would copy the supervisor's memory
    send_line(requests, {"is_ready": True, "needed": function.needed})
    _Supervisor(requests, function, float(timeout_s)).serve()
    kill_descendants()
    return 0


class _Supervisor:
    """Owns at most one scorer."""

    def __init__(self, requests: socket.socket, function: RewardFunction, timeout_s: float) -> None:
        self._requests = requests
        self._function = function
        self._timeout_s = timeout_s
        self._scorer_pid = 0
        self._scorer: socket.socket
        self._num_checks = 0
        self._printed = _Printed()
        self._shared = children_of(os.getpid())
        """Processes that the import of the function started, for all scorers."""

    def serve(self) -> None:
        self._fork_scorer()
        with contextlib.suppress(ConnectionError, EOFError), self._requests.makefile("rb") as lines:
            for line in lines:
                self._serve_one(line)
        self._kill_scorer()

    def _serve_one(self, line: bytes) -> None:
        if self._has_scorer_ended():  # while idle, which is no fault of this request
            self._kill_scorer()
            self._fork_scorer()
        started_s = time.monotonic()
        answer = self._score_within_limit(line)
        time_s = time.monotonic() - started_s
        must_replace = isinstance(answer, Outcome)
        if must_replace:
            self._kill_scorer()
        send_line(self._requests, (_as_json(answer) if isinstance(answer, Outcome) else answer) | {"time_s": time_s})
        self._num_checks += 1
        if must_replace or self._num_checks >= _MAX_CHECKS_PER_SCORER:
            self._kill_scorer()
            self._fork_scorer()

    def _score_within_limit(self, line: bytes) -> dict[str, Any] | Outcome:
        """Give the scorer's answer, or what came of it where it gave none.

        Raises:
            EOFError: The parent closed the socket meanwhile.
        """
        deadline_s = time.monotonic() + self._timeout_s
        with contextlib.suppress(ConnectionError):
            self._scorer.sendall(line)
            answer = b""
            while not answer.endswith(b"\n"):
                if not self._wait_for_scorer(deadline_s):
                    return Outcome(score=TIMEOUT, problem=f"it took longer than {self._timeout_s:g} s")
                received = self._scorer.recv(_RECEIVE_BYTES)
                if not received:
                    break
                answer += received
            else:
                scored: dict[str, Any] = json.loads(answer)
                return scored
        return Outcome(score=CHECKER_CRASHED, problem="its process died")

    def _wait_for_scorer(self, deadline_s: float) -> bool:
        poll = select.poll()
        poll.register(self._scorer, select.POLLIN)
        poll.register(self._requests, select.POLLRDHUP)
        poll.register(self._printed.receiver, select.POLLIN)
        while True:
            ready = {file for file, _ in poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)}
            if self._printed.receiver in ready:
                self._printed.pass_on()
            if self._requests.fileno() in ready:
                raise EOFError
            if self._scorer.fileno() in ready or time.monotonic() >= deadline_s:
                return self._scorer.fileno() in ready

    def _fork_scorer(self) -> None:
        supervisor_pid = os.getpid()
        ours, theirs = socket.socketpair()
        self._num_checks = 0
        self._scorer_pid = os.fork()
        if self._scorer_pid == 0:
            try:
                ours.close()
                os.close(self._requests.fileno())  # close() would wait for the file made from it
                _score_until_killed(OwnSocket(theirs.detach()), self._function, supervisor_pid, self._printed.sender)
            finally:
                # Whatever a check raises, SystemExit too: the supervisor's code must not go on in here.
                os._exit(1)
        theirs.close()
        self._scorer = ours

    def _has_scorer_ended(self) -> bool:
        return os.waitid(os.P_PID, self._scorer_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _kill_scorer(self) -> None:
        if self._scorer_pid:
            kill_descendants(but=self._shared)
            self._scorer_pid = 0
            self._scorer.close()


class _Printed:
    """The pipe of what all scorers print, one after the other."""

    def __init__(self) -> None:
        self.receiver, self.sender = os.pipe()
        self._num_left = _MOST_PRINTED_BYTES

    def pass_on(self) -> None:
        """Read what there is, at least a byte, and write it to standard error as long as some may be."""
        read = os.read(self.receiver, _RECEIVE_BYTES)
        shown, self._num_left = read[: self._num_left], max(0, self._num_left - len(read))
        if shown:
            with contextlib.suppress(OSError):  # nobody reads any more
                os.write(2, shown if self._num_left else shown + _NO_MORE)


def _score_until_killed(requests: OwnSocket, function: RewardFunction, supervisor_pid: int, printed: int) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != supervisor_pid:
        return  # it died before the kernel knew what to do then
    limit_resource(resource.RLIMIT_AS, _address_space_bytes() + SCORER_MEMORY_BYTES)
    limit_resource(resource.RLIMIT_CORE, 0)
    for standard in (1, 2):
        os.dup2(printed, standard)
    with requests.makefile("rb") as lines:
        for line in lines:
            send_line(requests, _as_json(function(json.loads(line))))


def _address_space_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _as_json(outcome: Outcome) -> dict[str, Any]:
    return outcome.score._asdict() | {"parts": outcome.parts, "problem": outcome.problem}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
