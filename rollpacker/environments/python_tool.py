"""Python as a tool: `environment.tools=[rollpacker.environments.python_tool:python]`.

Programs run in the sandbox of rewards (`rollpacker.rewards.sandbox`), isolated by bubblewrap, within the default limits
of `reward.sandbox`. Each starts from nothing: names and files of an earlier call are gone.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from rollpacker.config.python_names import UnusableFunction
from rollpacker.config.sections.sandbox import SandboxSection
from rollpacker.core.errors import EngineFailed
from rollpacker.processes.server_process import ServerProcess
from rollpacker.rewards.sandbox.worker import SUPERVISOR

LIMIT_S = 10.0
"""Of a program's own time."""

_WALL_S = 300.0
"""For an answer on a busy node; environment.turn_timeout_s ends a call earlier."""

MOST_CHARACTERS = 10_000
"""Of an output that the model is shown."""

_PROGRAM = """
import ast, sys, traceback
def run(source):
    names = {{"__name__": "__main__"}}
    try:
        tree = compile(source, "program.py", "exec", ast.PyCF_ONLY_AST)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "program.py", "exec"), names)
        if last is not None:
            sys.displayhook(eval(compile(ast.Expression(last.value), "program.py", "eval"), names))
    except SystemExit as error:
        if error.code:
            print("SystemExit:", error.code)
    except Exception as error:
        error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
        traceback.print_exception(error, file=sys.stdout)
run({source!r})
"""
"""Shows the value of a last expression, as Python's prompt does, and errors as it shows them."""

_WORDS = {
    "timeout": f"it took longer than {LIMIT_S:g} s",
    "memory": "it needed too much memory",
    "processes": "it started too many processes",
    "output": "its output is too long",
    "error": "the program ended with an error",
    "checker_crashed": "the sandbox crashed",
}


def python(code: str) -> str:
    """Run a Python program, and give what it prints and the value of its last line.

    Args:
        code: The program. Standard library only, no network; nothing is left of earlier programs.
    """
    job = {
        "source": _PROGRAM.format(source=code),
        "entry_point": None,
        "has_prelude": False,
        "cases": [{"kind": "stdin", "input": "", "output": None, "time_limit_s": None, "memory_limit_mb": None}],
        "limits_s": [LIMIT_S],
    }
    try:
        response: dict[str, Any] = _supervisor().ask(json.dumps(job), _WALL_S)
    except EngineFailed:  # of this call alone
        _supervisor().restart()
        prepare_tools()
        raise
    if "output" not in response:
        return f"Error: {_WORDS.get(response['reason'], response['reason'])}"
    output = str(response["output"])
    if len(output) <= MOST_CHARACTERS:
        return output
    half = MOST_CHARACTERS // 2
    return f"{output[:half]}\n... {len(output) - 2 * half} characters left out ...\n{output[-half:]}"


def prepare_tools() -> None:
    """Start the sandbox of this process.

    Raises:
        UnusableFunction: None starts on this machine.
    """
    if (failure := _supervisor().start_failure()) is not None:
        raise UnusableFunction(f"the tool `python` needs the sandbox, and none starts here: {failure}")


@functools.cache
def _supervisor() -> ServerProcess:
    return ServerProcess(SUPERVISOR, [SandboxSection().bounds_json()], role="sandbox of the tool `python`")
