"""Compares the output of a program with the expected one, in a process with its own limits.

A short answer can take long to decode (the fraction `1e1000000000`, a set whose numbers all collide) and a long text
much memory to split. So the supervisor forks a process for each comparison, and kills it when it exceeds its limits.

Invariant: the supervisor itself takes linear time for an answer. An answer that is written exactly as the expected one
is right at once, which saves most right programs the fork.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Mapping
from typing import Any

from rollpacker.processes.lifetimes import limit_resource, set_parent_death_signal
from rollpacker.rewards.sandbox.comparison import is_one_of, is_same_text
from rollpacker.rewards.sandbox.values import OPAQUE, Opaque, decode, encode

LIMIT_S = 60.0
"""Wall time of a comparison, on a node that is busy."""

_CPU_S = 10
"""Time on a core. Two texts of the largest output that is allowed by default take 3 s."""

_MEMORY_BYTES = 1 << 30
"""Address space, the supervisor's own 50 MiB included. 16 MiB of the shortest lines take 0.5 GiB."""

_ANSWER_BYTES, _ANSWER_FACTOR = 1 << 16, 16
"""An answer may have so many bytes, and so many times the expected one's: tags, digits and white space. What is larger
is wrong."""

_RIGHT, _WRONG, _UNDECIDED = 0, 1, 2
"""Exit codes."""


class Comparison:
    """One comparison, in a child of this process that `close` ends. Its file becomes readable when it is over."""

    def __init__(self, case: Mapping[str, Any], given: bytes) -> None:
        self.pid = os.fork()
        if self.pid == 0:
            code = _UNDECIDED
            try:
                _limit_this_process()
                code = _RIGHT if _is_right(case, given) else _WRONG
            finally:
                os._exit(code)  # also when it raised: the supervisor's code must not go on in here
        self._file = os.pidfd_open(self.pid)

    def fileno(self) -> int:
        return self._file

    def close(self) -> bool | None:
        """End it, and give its result: None when it has none, because it was over its limits or was not over."""
        os.close(self._file)
        os.kill(self.pid, signal.SIGKILL)  # of a child that is not waited for: harmless when it has ended
        _, status = os.waitpid(self.pid, 0)
        return {_RIGHT: True, _WRONG: False}.get(os.waitstatus_to_exitcode(status))


def result_at_once(case: Mapping[str, Any], given: bytes) -> bool | None:
    """Say whether an answer is right where that is plain from its bytes; None: it has to be compared."""
    if case["kind"] == "stdin":
        expected = [case["output"].encode(errors="replace").rstrip()]
        given = given.rstrip()
    else:
        expected = [text.encode() for text in map(encode, case["accepted"]) if OPAQUE not in text]
    if given in expected:
        return True
    if len(given) > _ANSWER_BYTES + _ANSWER_FACTOR * max(map(len, expected), default=0):
        return False
    return None


def _limit_this_process() -> None:
    set_parent_death_signal(signal.SIGKILL)
    limit_resource(resource.RLIMIT_CPU, _CPU_S)
    limit_resource(resource.RLIMIT_AS, _MEMORY_BYTES)
    limit_resource(resource.RLIMIT_CORE, 0)
    os.dup2(os.open(os.devnull, os.O_RDWR), 2)


def _is_right(case: Mapping[str, Any], given: bytes) -> bool:
    if case["kind"] == "stdin":
        return is_same_text(given.decode(errors="replace"), case["output"])
    return is_one_of(_value_of(given), case["accepted"])


def _value_of(answer: bytes) -> object:
    """Decode what a function returned; malformed data equals nothing."""
    try:
        return decode(json.loads(answer))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, ArithmeticError):
        return Opaque("malformed")
