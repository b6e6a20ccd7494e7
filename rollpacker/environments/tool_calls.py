"""Finds the calls of tools in the text of a turn, as models of several families write them.

Parsers have the names that vLLM's `--tool-call-parser` has. Where vLLM takes a call that cannot be read for ordinary
text, these say what is wrong with it: a model can learn from that, and a broken call is no answer.

* `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them; the last tag may be missing.
* `llama3_json`: `{"name": ..., "parameters": {...}}` from the beginning of the turn on, perhaps after `<|python_tag|>`,
  several with `;` between. Without the tag, an object without `name` is no call: answers may be JSON.

What stands before `</think>` is no call. Text around calls is for no one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

_HERMES = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_PYTHON_TAG = "<|python_tag|>"
_FORM = 'it is JSON: {"name": NAME, "arguments": {...}}'


class MalformedCallError(Exception):
    """A turn begins a call that cannot be read; the message is for the model."""


class Call(NamedTuple):
    """A call as a model wrote it: of any function, with any arguments."""

    name: str
    arguments: Mapping[str, Any]


def parse_hermes(text: str) -> list[Call]:
    """Find calls between tags.

    Raises:
        MalformedCallError: What stands between them is no call.
    """
    found = []
    for body in _HERMES.findall(_said(text)):
        try:
            found.append(_call_of(json.loads(body)))
        except (ValueError, RecursionError) as error:
            raise MalformedCallError(f"a call cannot be read, {_FORM}: {error}") from error
    return found


def parse_llama3_json(text: str) -> list[Call]:
    """Find calls from the beginning of a turn on.

    Raises:
        MalformedCallError: It begins with JSON, and that is no call.
    """
    said = _said(text).strip()
    rest = said.removeprefix(_PYTHON_TAG)
    has_tag = rest != said
    if not has_tag and not rest.startswith("{"):
        return []
    found: list[Call] = []
    decoder = json.JSONDecoder()
    rest = rest.strip()
    while not found or rest.startswith("{"):
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            raise MalformedCallError(f"a call cannot be read, {_FORM}: {error}") from error
        if not found and not has_tag and "name" not in value:
            return []
        found.append(_call_of(value))
        rest = rest[end:].lstrip(" \t\n;")
    return found


PARSERS: Mapping[str, Callable[[str], list[Call]]] = {"hermes": parse_hermes, "llama3_json": parse_llama3_json}
"""By vLLM's names."""


def _said(text: str) -> str:
    return text.rpartition("</think>")[2]


def _call_of(value: object) -> Call:
    match value:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return Call(name, arguments)
    raise MalformedCallError(f"a call cannot be read, {_FORM}, not {json.dumps(value):.200}")
