"""The process of one environment, which may hang or crash: whoever started it ends it by the id of its keeper.

Invariant: neither it nor anything that the environment started, a browser say, outlives the process that started it or
the closing of its socket. A keeper sees to that (`fork_under_keeper`): the environment may be in C code.

Both sides speak JSON lines. Requests are `{"reset": {"seed": ..., "options": ..., ...}}` and `{"step": {"text": ...}}`,
with the fields of `rollpacker.protocols.environment`; responses `{observation, reward, terminated, truncated}`,
or `{failure}` where the environment raised, `{failure, is_unfit}` where it answered otherwise.
`{"tool_schemas": true}` asks for `{tool_schemas}`, and `{"prompts": {"most": ..., "most_of_endless": ...}}` for the
rows of that many prompts, null for all. It first sends `{"is_ready": true}`, or `{"failure": ...}` and ends.

Only the process that took the socket writes to it: a process that an environment forks, and that raises or returns
into this module, exits there.

An observation is a text, or a list of chat messages. An environment with `takes_tokens` gets all of a turn, as a dict,
and may answer with a list of tokens.

Run as `python -m rollpacker.environments.process ENV ARGUMENTS PARENT_PID`, with the socket as standard input.
"""

from __future__ import annotations

import contextlib
import errno
import inspect
import json
import logging
import resource
import signal
import sys
from collections.abc import Callable
from numbers import Real
from typing import Any

from rollpacker.config.python_names import UnusableFunction, in_words, load_named, refusal
from rollpacker.environments.known_parameters import taking_known
from rollpacker.environments.numbered_actions import InTexts, is_played_in_numbers
from rollpacker.processes.lifetimes import fork_under_keeper, limit_resource
from rollpacker.processes.serving import send_line, take_standard_input
from rollpacker.protocols.reward import LARGEST_REWARD

MEMORY_BYTES = 16 << 30
"""Private writable memory of each process of an environment, those that it starts too: one that wants more should fail
alone, not take the node's memory. RLIMIT_DATA, since Linux 4.7, counts neither files mapped to be read or shared nor
address space that is only reserved: browsers, WebAssembly and Java reserve far more than they use."""

_AS_TEXT = " (of gymnasium's, those with a render_mode `ansi` give texts: name it in environment.arguments)"

_log = logging.getLogger(__name__)


class Unfit(Exception):
    """An environment answered what no interface allows; the message says what."""


class Environment:
    """One environment, as the process sees it.

    Args:
        env: Has `reset` and `step`.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._takes_tokens = getattr(env, "takes_tokens", False)
        self._reset = taking_known(env.reset)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Reset, step, or tell of tools; raises what the environment raises, and `Unfit`."""
        match request:
            case {"step": turn}:
                return self._step_of(self._env.step(turn if self._takes_tokens else turn["text"]))
            case {"tool_schemas": _}:
                return {"tool_schemas": getattr(self._env, "tool_schemas", [])}
            case {"prompts": limits}:
                return {"prompts": self._env.prompts(**limits)}
        match self._reset(**request["reset"]):
            case (observation, dict()) if self._is_fit(observation):
                return {"observation": observation, "reward": 0.0, "terminated": False, "truncated": False}
            case other:
                raise Unfit(f"reset returned {other!r:.300}; it is an observation, a text, and a dict{_AS_TEXT}")

    def close(self) -> None:
        """Let go of what it holds, if it has such a method, as gymnasium's have; what that raises is logged."""
        if callable(close := getattr(self._env, "close", None)):
            try:
                close()
            except (Exception, SystemExit) as error:  # noqa: BLE001 its process ends, and so does what it holds
                _log.warning("Closing an environment raised %s", in_words(error, __file__))

    def _step_of(self, value: Any) -> dict[str, Any]:
        match value:
            case (observation, reward, terminated, truncated, dict()) if self._is_fit(observation):
                number = reward.item() if hasattr(reward, "item") else reward
                if not isinstance(number, Real) or not abs(float(number)) <= LARGEST_REWARD:
                    raise Unfit(f"step returned the reward {reward!r:.300}, which no training bears")
                return {
                    "observation": observation,
                    "reward": float(number),
                    "terminated": bool(terminated),
                    "truncated": bool(truncated),
                }
        raise Unfit(
            f"step returned {value!r:.300}; it is an observation, a text, with reward, terminated, truncated and a dict"
        )

    def _is_fit(self, observation: object) -> bool:
        if isinstance(observation, list):
            return self._takes_tokens or all(map(_is_message, observation))
        return isinstance(observation, str)


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)


def make(source: str, arguments: dict[str, Any]) -> Environment:
    """Import an environment and make one.

    Raises:
        UnusableFunction: There is none, it takes other arguments, or it lacks `reset` or `step`.
    """
    kind: Callable[..., Any] = load_named(source)
    if not callable(kind):
        raise UnusableFunction(f"{source} is {kind!r:.300}, which makes no environment")
    try:
        return _in_texts(source, kind(**arguments))
    except UnusableFunction:
        raise
    except (Exception, SystemExit) as error:
        raise UnusableFunction(f"making {source} raised {_error_in_words(error)}") from error


def _in_texts(source: str, env: Any) -> Environment:
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise UnusableFunction(f"{source} has no method `{name}`")
        if inspect.iscoroutinefunction(getattr(env, name)):
            raise UnusableFunction(f"the method `{name}` of {source} is async; it is called as a plain one")
    if why := refusal(env.step, "a turn"):
        raise UnusableFunction(f"the method `step` of {source} is called with a turn alone: {why}")
    return Environment(InTexts(env) if is_played_in_numbers(env) else env)


def _error_in_words(error: BaseException) -> str:
    """Give the error and its place, and the limit where memory was refused."""
    is_refused = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    limit = f"; each process of an environment may have {MEMORY_BYTES >> 30} GiB of memory" if is_refused else ""
    return f"{in_words(error, __file__)}{limit}"


def main(words: list[str]) -> int:
    """Serve until the socket is closed."""
    source, arguments, parent_pid = words
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    fork_under_keeper(int(parent_pid))
    requests = take_standard_input()
    sys.dont_write_bytecode = True  # the folder of a user's file stays as it is
    limit_resource(resource.RLIMIT_DATA, MEMORY_BYTES)
    limit_resource(resource.RLIMIT_CORE, 0)
    try:
        environment = make(source, json.loads(arguments))
    except UnusableFunction as error:
        with contextlib.suppress(ConnectionError):  # the run may have ended meanwhile
            send_line(requests, {"failure": str(error)})
        return 1
    with contextlib.suppress(ConnectionError), requests.makefile("rb") as lines:
        send_line(requests, {"is_ready": True})
        for line in lines:
            try:
                response = _line_of(environment.answer(json.loads(line)))
            except (Exception, SystemExit) as error:  # noqa: BLE001 a trajectory's boundary: what it raises ends no run
                is_told = isinstance(error, Unfit | UnusableFunction)
                answer: dict[str, Any] = {"failure": str(error) if is_told else f"it raised {_error_in_words(error)}"}
                answer |= {"is_unfit": True} if isinstance(error, Unfit) else {}
                response = _line_of(answer)
            requests.sendall(response)
    environment.close()
    return 0


def _line_of(answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(answer).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise Unfit(f"it answered what is no JSON: {error}") from error


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
