"""The program that runs checks which may hang: a keeper that never hangs, and a judge that it can kill.

    reward worker ──socket──> keeper ──socket──> judge
                              (imports once,     (forked from the keeper,
                               keeps time)        warm from its first moment)

The keeper imports the reward module, forks a judge, and passes one request after the other on. When the judge is
silent for longer than the limit, or dies, the keeper kills it by its id (its own child, not yet waited for, so the id
cannot be another's), answers `timeout` or `checker_crashed`, and forks another. A fork takes milliseconds where a new
interpreter with sympy takes seconds, so a hanging check does not stall the ones behind it.

Invariant: no process outlives the reward worker's, however that dies, and whatever a check does. The keeper ends when
its socket closes, and the kernel tells it when its parent dies. The judge may be deep in C code and deaf to
signals that Python handles, so the kernel kills it when the keeper dies (PR_SET_PDEATHSIG).

Both sides speak JSON lines: requests are `{prompt_text, response_text, is_truncated, ground_truth}`, answers
`{reward, reason, time_s}`. The keeper first says `{"is_ready": true}`, or `{"failure": ...}` and ends.

Run as `python -m rollpacker.rewards.judging_process MODULE TIMEOUT_S PARENT_PID`, with the socket as standard input.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, cast

from rollpacker.rewards.judgement import CHECKER_CRASHED, TIMEOUT, Judgement
from rollpacker.rewards.processes import exit_when_parent_dies, limit_resource, set_parent_death_signal

if TYPE_CHECKING:
    from rollpacker.rewards.judgement import RewardModule

_JUDGE_MEMORY_BYTES = 4 << 30
"""Address space of a judge. A check with sympy needs 0.2 GB; one that wants 4 GB should fail alone, not take the
node's memory."""

_MAX_CHECKS_PER_JUDGE = 1000
"""Then a fresh one is forked, so that caches and leaks of the checked libraries stay small. Costs milliseconds."""

_RECEIVE_BYTES = 1 << 16


def main(arguments: list[str]) -> int:
    """Serve one reward worker until it closes the socket."""
    module_name, timeout_s, parent_pid = arguments
    requests = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    exit_when_parent_dies(int(parent_pid))
    try:
        module = cast("RewardModule", importlib.import_module(module_name))
        module.prepare()
    except Exception as error:  # noqa: BLE001 the process boundary: the parent raises it
        _send(requests, {"failure": f"{type(error).__name__}: {error}"})
        return 1
    gc.freeze()  # or every garbage collection of a judge would copy the keeper's memory
    _send(requests, {"is_ready": True})
    _Keeper(requests, module, float(timeout_s)).serve()
    return 0


class _Keeper:
    """Owns at most one judge."""

    def __init__(self, requests: socket.socket, module: RewardModule, timeout_s: float) -> None:
        self._requests = requests
        self._module = module
        self._timeout_s = timeout_s
        self._judge_pid = 0
        self._judge: socket.socket
        self._num_checks = 0

    def serve(self) -> None:
        self._fork_judge()
        with contextlib.suppress(ConnectionError, EOFError), self._requests.makefile("rb") as lines:
            for line in lines:
                self._serve_one(line)
        self._kill_judge()

    def _serve_one(self, line: bytes) -> None:
        started_s = time.monotonic()
        judgement = self._ask_judge(line)
        time_s = time.monotonic() - started_s
        must_replace = judgement in {TIMEOUT, CHECKER_CRASHED}
        if must_replace:
            self._kill_judge()
        _send(self._requests, {"reward": judgement.reward, "reason": judgement.reason, "time_s": time_s})
        self._num_checks += 1
        if must_replace or self._num_checks >= _MAX_CHECKS_PER_JUDGE:
            self._kill_judge()
            self._fork_judge()

    def _ask_judge(self, line: bytes) -> Judgement:
        """Raises EOFError when the parent closed the socket meanwhile."""
        deadline_s = time.monotonic() + self._timeout_s
        with contextlib.suppress(ConnectionError):
            self._judge.sendall(line)
            answer = b""
            while not answer.endswith(b"\n"):
                if not self._wait_for_judge(deadline_s):
                    return TIMEOUT
                received = self._judge.recv(_RECEIVE_BYTES)
                if not received:
                    return CHECKER_CRASHED
                answer += received
            return Judgement(*json.loads(answer))
        return CHECKER_CRASHED

    def _wait_for_judge(self, deadline_s: float) -> bool:
        poll = select.poll()
        poll.register(self._judge, select.POLLIN)
        poll.register(self._requests, select.POLLRDHUP)
        ready = poll.poll(max(0.0, deadline_s - time.monotonic()) * 1000)
        if any(file == self._requests.fileno() for file, _ in ready):
            raise EOFError
        return bool(ready)

    def _fork_judge(self) -> None:
        keeper_pid = os.getpid()
        ours, theirs = socket.socketpair()
        self._num_checks = 0
        self._judge_pid = os.fork()
        if self._judge_pid == 0:
            try:
                ours.close()
                os.close(self._requests.fileno())  # close() would wait for the file made from it
                _judge_until_killed(theirs, self._module, keeper_pid)
            finally:
                # Whatever a check raises, SystemExit too: the keeper's code must not go on in here.
                os._exit(1)
        theirs.close()
        self._judge = ours

    def _kill_judge(self) -> None:
        if self._judge_pid:
            os.kill(self._judge_pid, signal.SIGKILL)
            os.waitpid(self._judge_pid, 0)
            self._judge_pid = 0
            self._judge.close()


def _judge_until_killed(requests: socket.socket, module: RewardModule, keeper_pid: int) -> None:
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != keeper_pid:
        return  # it died before the kernel knew what to do then
    limit_resource(resource.RLIMIT_AS, _JUDGE_MEMORY_BYTES)
    limit_resource(resource.RLIMIT_CORE, 0)
    os.dup2(0, 2)  # a crash is a verdict, and its traceback nobody's reading
    with requests.makefile("rb") as lines:
        for line in lines:
            judgement = module.judge(**json.loads(line))
            _send(requests, judgement)


def _send(receiver: socket.socket, message: object) -> None:
    receiver.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
