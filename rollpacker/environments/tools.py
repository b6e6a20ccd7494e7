"""Functions that a model may call: each call of a turn is answered by a message of the role `tool`.

    turn with calls ──each function is called──> messages with what they returned, or why they could not
    turn without one ──> the answer: the trajectory ends

Invariant: nothing that a model writes, and nothing that a function raises, `sys.exit` included, is a failure of the
environment. What hangs or crashes the process is: the trajectory begins again. So is what `reset_tools` raises.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from rollpacker.config.python_names import UnusableFunction, in_words, load_named, module_of
from rollpacker.environments.tool_calls import PARSERS, Call, MalformedCallError, no_tool, value_of

_PREPARE = "prepare_tools"
"""A function of a tool's module that is called once, before any call, if there is one."""

_RESET = "reset_tools"
"""A function of a tool's module that is called as a trajectory begins, if there is one: a process has many."""


class Tools:
    """An environment with the interface of `rollpacker.environments`.

    Args:
        tools: The functions, each `FILE.py:NAME` or `PACKAGE.MODULE:NAME`; a model calls them by their own names.
        parser: How it writes calls: one of `rollpacker.environments.tool_calls.PARSERS`.
    """

    def __init__(self, tools: list[str], parser: str) -> None:
        self._functions: dict[str, Callable[..., object]] = {}
        self._parse = PARSERS[parser]
        for source in tools:
            function = load_named(source, prepare=_PREPARE)
            if not inspect.isfunction(function) or inspect.iscoroutinefunction(function):
                raise UnusableFunction(f"{source} is {function!r:.100}, which is no plain function")
            if function.__name__ in self._functions:
                raise UnusableFunction(f"two tools are called {function.__name__}")
            self._functions[function.__name__] = function
        self._modules = tuple(dict.fromkeys(map(module_of, tools)))

    @cached_property
    def tool_schemas(self) -> list[dict[str, Any]]:
        """What a chat template tells the model of each.

        Raises:
            UnusableFunction: One lacks type hints or a docstring.
        """
        from rollpacker.data.tokenization import without_torch

        with without_torch():
            from transformers.utils.chat_template_utils import get_json_schema
        schemas = []
        for name, function in self._functions.items():
            try:
                schemas.append(get_json_schema(function))
            except Exception as error:  # its errors have no class of their own in common
                raise UnusableFunction(f"{name} has no schema: {error}") from error
        return schemas

    def reset(self) -> tuple[list[dict[str, str]], dict[str, Any]]:
        """Begin, with what the tools' modules do then; the prompt asks."""
        for module in self._modules:
            if callable(reset := getattr(module, _RESET, None)):
                reset()
        return [], {}

    def step(self, action: str) -> tuple[list[dict[str, str]], float, bool, bool, dict[str, Any]]:
        """Call what a turn calls, one after the other; a turn without calls ends the trajectory."""
        try:
            calls = self._parse(action)
        except MalformedCallError as error:
            return [_message("", f"Error: {error}")], 0.0, False, False, {}
        results = [_message(call.name, self._result_of(call)) for call in calls]
        return results, 0.0, not calls, False, {}

    def _result_of(self, call: Call) -> str:
        function = self._functions.get(call.name)
        if function is None:
            return no_tool(call.name, self._functions)
        try:
            result = function(**(_as_hinted(call.arguments, function) if call.are_texts else call.arguments))
            return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a call's boundary: the model is told, and may call again
            return f"Error: {in_words(error, __file__)}"


def _message(name: str, content: str) -> dict[str, str]:
    return {"role": "tool", "content": content} | ({"name": name} if name else {})


def _as_hinted(texts: Mapping[str, str], function: Callable[..., object]) -> dict[str, object]:
    """Give a function what arguments that were written as plain text stand for, where it takes something else."""
    hints = get_type_hints(function)
    return {key: text if _takes(hints.get(key, str), text) else value_of(text) for key, text in texts.items()}


def _takes(hint: Any, text: str) -> bool:
    """Whether a hint takes this text as it is: the elements of `list[str]` are texts, and the list is none."""
    if get_origin(hint) in {Union, UnionType}:
        return any(_takes(each, text) for each in get_args(hint))
    return hint is str or (get_origin(hint) is Literal and text in get_args(hint))
