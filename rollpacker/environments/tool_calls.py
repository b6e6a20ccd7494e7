"""Finds the calls of tools in the text of a turn, as models of several families write them.

Parsers have the names that vLLM's `--tool-call-parser` has. Where vLLM takes a call that cannot be read for ordinary
text, these say what is wrong with it: a model can learn from that, and a broken call is no answer.

* `hermes`: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them; the last tag may be missing.
* `llama3_json`: `{"name": ..., "parameters": {...}}` from the beginning of the turn on, perhaps after `<|python_tag|>`,
  several with `;` between. Without the tag, braces without the key `name`, `parameters` or `arguments` are no call:
  answers may be JSON, or a set.
* `qwen3_coder`: `<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, any number of
  them, or functions alone, without a tag around any. Values are plain text; what they mean is for the function's type
  hints to say, or for its schema.
* `pythonic`: the turn is a list of calls in Python, `[f(a=1), g()]`, perhaps between `<|python_start|>` and
  `<|python_end|>`, with keywords and constants alone; JSON's `true`, `false` and `null` are constants, too.
* `deepseek_v3`, `deepseek_v31`: between DeepSeek's tokens for the begin and the end of a call, any number of them,
  `function`, its separator, the name and a block of JSON; or the name, the separator and JSON. Each name reads both.

What stands before `</think>` is no call; in the argument of a call, it is a word as any other: between both tags, or in
a whole call of those without tags, unless it looks there as if the next call followed. Text around calls is for no one.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

_CLOSING = re.compile(r"<[|\uff5c][^<>\s]*[|\uff5c]>\s*\Z")
"""The token that ends a turn."""
_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_LLAMA = re.compile(r"(?:.*</think>)?\s*(<\|python_tag\|>|(?=\{))\s*", re.DOTALL)
_LLAMA_KEYS = ("name", "parameters", "arguments")
_LLAMA_KEY = re.compile(rf"""[{{,]\s*["']?(?:{"|".join(_LLAMA_KEYS)})["']?\s*:""")
"""Also as Python or JavaScript writes it."""
_FORM = 'it is JSON: {"name": NAME, "arguments": {...}}'
_XML_FORM = "it is <function=NAME><parameter=KEY>VALUE</parameter></function>"
_FUNCTION = re.compile(r"\s*<function=([^>]+)>(.*?)</function>\s*", re.DOTALL)
_UNTAGGED = re.compile(r"<function=.*?(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>]+)>(.*?)</parameter>", re.DOTALL)
_PYTHONIC_FORM = "it is [NAME(KEY=CONSTANT, ...), ...]"
_PYTHONIC = re.compile(r"(?:.*</think>)?\s*(?:<\|python_start\|>\s*)?(\[\s*[A-Za-z_]\w*\(.*)", re.DOTALL)
_JSON_NAMES = {"true": True, "false": False, "null": None}
_BEGIN, _SEPARATOR, _END = (f"<\uff5ctool\u2581{name}\uff5c>" for name in ("call\u2581begin", "sep", "call\u2581end"))
_DEEPSEEK = re.compile(rf"{_BEGIN}(.*?)(?:{_END}|\Z)", re.DOTALL)
_DEEPSEEK_FORM = f"it is NAME{_SEPARATOR}{{...}}, or function{_SEPARATOR}NAME and a block of JSON"
_OPENING = f"<tool_call>|<function=|{_BEGIN}"
_WHOLE_CALL = re.compile(f"(?:{_OPENING})(?:(?!{_OPENING}).)*?(?:</tool_call>|</function>|{_END})", re.DOTALL)
"""Of any family with tags."""
_BLOCK = re.compile(r"([^\n]*)\n```json\n(.*)\n```\s*", re.DOTALL)


class MalformedCallError(Exception):
    """A turn begins a call that cannot be read; the message is for the model."""


class Call(NamedTuple):
    """A call as a model wrote it: of any function, with any arguments."""

    name: str
    arguments: Mapping[str, Any]
    are_texts: bool = False
    """The model writes every argument as plain text, be it a number or a list."""


def parse_hermes(text: str) -> list[Call]:
    """Find calls between tags.

    Raises:
        MalformedCallError: What stands between them is no call.
    """
    found = []
    for body in _TAGGED.findall(_said(text)):
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
    return _behind_thinking(_calls_in_json, text)


def parse_qwen3_coder(text: str) -> list[Call]:
    """Find functions with their parameters between tags; where there is no tag, functions alone.

    Raises:
        MalformedCallError: What stands between the tags, or begins as one, is no such function.
    """
    found, said = [], _said(text)
    for body in _TAGGED.findall(said) or _UNTAGGED.findall(said):
        function = _FUNCTION.fullmatch(body)
        arguments = _parameters_of(function[2]) if function else None
        if function is None or arguments is None:
            raise MalformedCallError(f"a call cannot be read, {_XML_FORM}, not {body.strip():.200}")
        found.append(Call(function[1].strip(), arguments, are_texts=True))
    return found


def parse_pythonic(text: str) -> list[Call]:
    """Find the calls of a turn that is a list of them.

    Raises:
        MalformedCallError: It begins with a call in a list, and is none.
    """
    return _behind_thinking(_calls_in_python, text)


def parse_deepseek(text: str) -> list[Call]:
    """Find calls between tags.

    Raises:
        MalformedCallError: What stands between them is no call.
    """
    found = []
    for body in _DEEPSEEK.findall(_said(text)):
        first, _, rest = body.partition(_SEPARATOR)
        block = _BLOCK.fullmatch(rest)
        name, arguments = (block[1], block[2]) if block else (first, rest)
        try:
            found.append(_call_of({"name": name.strip(), "arguments": json.loads(arguments)}))
        except (ValueError, RecursionError, MalformedCallError) as error:
            raise MalformedCallError(f"a call cannot be read, {_DEEPSEEK_FORM}: {error}") from error
    return found


PARSERS: Mapping[str, Callable[[str], list[Call]]] = {
    "hermes": parse_hermes,
    "llama3_json": parse_llama3_json,
    "qwen3_coder": parse_qwen3_coder,
    "pythonic": parse_pythonic,
    "deepseek_v3": parse_deepseek,
    "deepseek_v31": parse_deepseek,
}
"""By vLLM's names."""


def no_tool(name: str, known: Iterable[str]) -> str:
    """Answer a call of a tool that is not there."""
    return f"Error: there is no tool {name}; there are {', '.join(known)}"


def value_of(text: str) -> object:
    """Read an argument that was written as plain text, where the function takes something else."""
    for read in (json.loads, ast.literal_eval):  # models write `true` and `True`
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return read(text)
    return text


def _said(text: str) -> str:
    """What follows the thinking, which a `</think>` between the tags of a call does not end."""
    without_calls = _WHOLE_CALL.sub(lambda call: " " * len(call[0]), text)
    thought, end, _ = without_calls.rpartition("</think>")
    return _CLOSING.sub("", text[len(thought + end) :])


def _behind_thinking(read: Callable[[str], tuple[list[Call], str]], text: str) -> list[Call]:
    """Read what a turn begins with, or what follows its thinking if a `</think>` shows that this was thinking."""
    _, end, said = text.rpartition("</think>")
    try:
        found, rest = read(text)
    except MalformedCallError:
        if not end:
            raise
    else:
        if "</think>" not in rest:
            return found
    return read(said)[0]


def _call_of(value: object) -> Call:
    match value:
        case {"name": str(name), "arguments": dict(arguments)} | {"name": str(name), "parameters": dict(arguments)}:
            return Call(name, arguments)
    raise MalformedCallError(f"a call cannot be read, {_FORM}, not {json.dumps(value):.200}")


def _parameters_of(body: str) -> dict[str, str] | None:
    """Read what stands between the tags of a function; None where it is not parameters alone."""
    found, end = {}, 0
    while parameter := _PARAMETER.match(body, end):
        found[parameter[1].strip()] = parameter[2].removeprefix("\n").removesuffix("\n")
        end = parameter.end()
    return None if body[end:].strip() else found


def _calls_in_json(text: str) -> tuple[list[Call], str]:
    """Give the calls that a text begins with, and the rest."""
    begun = _LLAMA.match(text)
    if begun is None:
        return [], ""
    has_tag, rest = bool(begun[1]), _CLOSING.sub("", text[begun.end() :])
    if not has_tag and not _LLAMA_KEY.search(rest.partition("}")[0]):
        return [], ""
    found: list[Call] = []
    decoder = json.JSONDecoder()
    while not found or rest.startswith("{"):
        try:
            value, end = decoder.raw_decode(rest)
        except (ValueError, RecursionError) as error:
            raise MalformedCallError(f"a call cannot be read, {_FORM}: {error}") from error
        if not found and not has_tag and value.keys().isdisjoint(_LLAMA_KEYS):
            return [], ""
        found.append(_call_of(value))
        rest = rest[end:].lstrip(" \t\n;")
    return found, rest


def _calls_in_python(text: str) -> tuple[list[Call], str]:
    """Give the calls of a text that is a list of them, and the rest."""
    begun = _PYTHONIC.match(text)
    if begun is None:
        return [], ""
    written, bracket, rest = begun[1].rpartition("]")
    try:
        return _calls_of_list(written + bracket), rest
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise MalformedCallError(f"a call cannot be read, {_PYTHONIC_FORM}: {error}") from error


def _calls_of_list(written: str) -> list[Call]:
    with warnings.catch_warnings(action="ignore", category=SyntaxWarning):  # of escapes in a text, say
        body = ast.parse(written, mode="eval").body
    match body:
        case ast.List(elts=elements):
            return [_call_in_python(each) for each in elements]
    raise ValueError(f"not {written:.200}")


def _call_in_python(node: ast.expr) -> Call:
    match node:
        case ast.Call(func=ast.Name(id=name), args=[], keywords=keywords) if all(each.arg for each in keywords):
            return Call(name, {str(each.arg): ast.literal_eval(_JsonNames().visit(each.value)) for each in keywords})
    raise ValueError(f"not {ast.unparse(node):.200}")


class _JsonNames(ast.NodeTransformer):
    """Puts Python's constants in the place of JSON's names."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(_JSON_NAMES[node.id]) if node.id in _JSON_NAMES else node
