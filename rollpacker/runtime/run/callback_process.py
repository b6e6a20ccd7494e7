"""The process of one callback: a user's class that is told what happened in a run (`run.callbacks`).

It reads JSON lines `{method, argument}` from its socket and answers each with `{problem}`, empty where the call went
well or the class has no such method. First it sends `{"is_ready": true}`, or `{"failure": ...}` and ends. A process
that a callback forks, and that raises or returns into this module, sends nothing and exits there.

Run as `python -m rollpacker.runtime.run.callback_process CLASS RUN_DIR LOG PARENT_PID`, with the socket as standard
input. With an empty LOG the class is only looked at: nothing of it is called.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollpacker.config.keys import nearest
from rollpacker.config.python_names import UnusableFunction, in_words, load_named, refusal
from rollpacker.processes.lifetimes import set_parent_death_signal
from rollpacker.processes.serving import send_line, take_standard_input

METHODS: Mapping[str, str] = {
    "on_step": "row",
    "on_evaluation": "rows",
    "on_checkpoint": "path",
    "on_end": "error",
}
"""What a class may have, each with its one argument."""


_LEFT_TO_THE_RUN = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Beside those of a terminal: Slurm's notice goes to all processes of a job."""


def main(arguments: list[str]) -> int:
    """Serve one run until it closes the socket."""
    source, run_dir, log, parent_pid = arguments
    requests = take_standard_input()
    output = os.open(log or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(output, 1)
    os.dup2(output, 2)
    _leave_signals_to_the_run()
    set_parent_death_signal(signal.SIGKILL)  # also in the middle of a call
    if os.getppid() != int(parent_pid):
        return 1
    sys.dont_write_bytecode = True  # the folder of a user's file stays as it is
    try:
        callback = load_callback(source)
        methods = callback(Path(run_dir)) if log else {}
    except UnusableFunction as error:
        send_line(requests, {"failure": str(error)})
        return 1
    send_line(requests, {"is_ready": True})
    with contextlib.suppress(ConnectionError), requests.makefile("rb") as lines:
        for line in lines:
            call = json.loads(line)
            send_line(requests, {"problem": _problem(methods.get(call["method"]), call["method"], call["argument"])})
    return 0


def _leave_signals_to_the_run() -> None:
    """Do nothing at what reaches the whole group or job: the run decides what it means, and ends this process.

    Commands that a callback starts inherit what is ignored, so they outlive Ctrl-C and a closed terminal, too, but end
    at the others; a process that it forks inherits handlers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in _LEFT_TO_THE_RUN:
        signal.signal(number, lambda *_: None)
    os.register_at_fork(after_in_child=lambda: [signal.signal(number, signal.SIG_DFL) for number in _LEFT_TO_THE_RUN])


def load_callback(source: str) -> Callable[[Path], Mapping[str, Callable[[Any], object]]]:
    """Import a class; gives a function that makes its instance for a run and gives that one's methods.

    Raises:
        UnusableFunction: There is no such class, or it cannot be called as a callback is; its instance, too.
    """
    made = load_named(source)
    place, _, name = source.rpartition(":")
    if not inspect.isclass(made):
        raise UnusableFunction(f"`{name}` of {place} is no class")
    make_instance: Callable[..., object] = made
    own = [each for each in dir(made) if each.startswith("on_")]
    for each in own:
        if each not in METHODS:
            close = nearest(each, METHODS)
            raise UnusableFunction(f"`{name}` has a method {each}, which nothing calls" + _instead(close))
        if inspect.iscoroutinefunction(getattr(made, each)):
            raise UnusableFunction(f"`{name}.{each}` is async; it is called as a plain method")
        has_self = not isinstance(inspect.getattr_static(made, each), staticmethod | classmethod)
        if refusal(getattr(made, each), *([None] if has_self else []), METHODS[each]):
            raise UnusableFunction(f"`{name}.{each}` is called with one argument, {METHODS[each]}, and takes others")
    if not own:
        raise UnusableFunction(f"`{name}` of {place} has none of the methods {', '.join(METHODS)}")
    takes_run_dir = _names_run_dir(made) and not refusal(made, run_dir=None)
    if not takes_run_dir and refusal(made):
        raise UnusableFunction(f"`{name}` is made with `run_dir` or with nothing, and takes other arguments")

    def make(run_dir: Path) -> Mapping[str, Callable[[Any], object]]:
        try:
            instance = make_instance(run_dir=run_dir) if takes_run_dir else make_instance()
        except Exception as error:
            raise UnusableFunction(f"{name}() raised {in_words(error)}") from error
        return {each: getattr(instance, each) for each in own}

    return make


def _names_run_dir(made: type) -> bool:
    try:
        return "run_dir" in inspect.signature(made).parameters
    except ValueError:  # some in C have none
        return False


def _instead(close: Sequence[str]) -> str:
    return f"; `{close[0]}` is one" if close else f"; there are {', '.join(METHODS)}"


def _problem(method: Callable[[Any], object] | None, name: str, argument: Any) -> str:
    """Call a method; give what went wrong, or nothing."""
    if method is None:
        return ""
    try:
        method(Path(argument) if name == "on_checkpoint" else argument)
    except Exception as error:  # noqa: BLE001  the boundary of a user's code: it ends no run
        traceback.print_exc()
        return f"{name} raised {in_words(error)}"
    finally:
        sys.stdout.flush()
    return ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
