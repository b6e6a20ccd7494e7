"""Reads the user's prompt file and refuses it at the first line that could not be trained.

Invariant: what `load_prompts` returns has unique ids, valid chat messages, and texts that are not blank, in the
order of the file. A line has `id`, `domain`, `ground_truth`, and `messages` (a list, or a string that holds the JSON
of a list) or `prompt`. When it has both, `messages` counts. Other fields are ignored.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from rollpacker.core.ids import Domain
from rollpacker.data.jsonl import (
    line_error,
    missing_field,
    read_identifier,
    read_json_lines,
    refuse_lone_surrogates,
    require_field,
    shown,
)
from rollpacker.protocols.rollout import Prompt

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.data.jsonl import JsonObject

_ROLES = ("system", "user", "assistant")
_ROLES_ALLOWED = "Allowed: system, user, assistant"


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Read every prompt of a JSONL file, in its order.

    Raises:
        DataError: The file cannot be read, is empty, or has a wrong line; the message names the line.
    """
    prompts: list[Prompt] = []
    first_line_of: dict[str, int] = {}
    for number, record in read_json_lines(path, kind="prompt file"):
        prompt = _read_prompt(record, path, number)
        first = first_line_of.setdefault(prompt.key, number)
        if first != number:
            raise line_error(
                path,
                number,
                f"the id {prompt.key!r} was used in line {first} already",
                'Allowed: an id that no other line has (1 and "1" are the same id)',
                "Give one of the two lines another id, or delete it",
            )
        prompts.append(prompt)
    return tuple(prompts)


def _read_prompt(record: JsonObject, path: Path, number: int) -> Prompt:
    key = read_identifier(record, path, number)
    domain = Domain(sys.intern(_read_text(record, "domain", path, number)))
    text = None
    if "messages" in record:
        messages = _read_messages(record["messages"], path, number)
    elif "prompt" not in record:
        raise missing_field(["messages", "prompt"], record, path, number)
    else:
        text = _read_text(record, "prompt", path, number)
        messages = ({"role": "user", "content": text},)
    return Prompt(
        key=key, domain=domain, messages=messages, text=text, ground_truth=_read_ground_truth(record, path, number)
    )


def _read_text(record: JsonObject, name: str, path: Path, number: int) -> str:
    value = require_field(record, name, path, number)
    if isinstance(value, str) and value and not value.isspace():
        return value
    raise line_error(
        path, number, f"`{name}` is {shown(value)}", "Allowed: a text that is not blank", f"Fill in `{name}`"
    )


def _read_ground_truth(record: JsonObject, path: Path, number: int) -> str:
    """A number is taken as its text. An empty text is legal: not every reward compares with an answer."""
    value = require_field(record, "ground_truth", path, number)
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise line_error(
        path, number, f"`ground_truth` is {shown(value)}", "Allowed: a string or a number", "Write the answer as text"
    )


def _read_messages(value: object, path: Path, number: int) -> tuple[dict[str, str], ...]:
    if isinstance(value, str):
        has_escapes = "\\u" in value
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise line_error(
                path,
                number,
                f"`messages` is a string without the JSON of a list: {error}",
                "Allowed: a list of messages, or a string that holds the JSON of one",
                "Write `messages` as a list, or use the field `prompt` for plain text",
            ) from None
        if has_escapes:
            refuse_lone_surrogates("messages", value, path, number)
    if not isinstance(value, list) or not value:
        raise line_error(
            path,
            number,
            f"`messages` is {shown(value)}",
            "Allowed: a list of at least one message",
            'Write it as [{"role": "user", "content": "..."}]',
        )
    messages = tuple(_read_message(message, index, path, number) for index, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise line_error(
            path,
            number,
            "`messages` ends with an answer of the assistant",
            "Allowed: a last message of the user or the system, which the policy then answers",
            "Delete the last message; the expected answer belongs in `ground_truth`",
        )
    return messages


def _read_message(message: object, index: int, path: Path, number: int) -> dict[str, str]:
    where = f"`messages[{index}]`"
    if not isinstance(message, dict) or message.keys() != {"role", "content"}:
        raise line_error(
            path,
            number,
            f"{where} is {shown(message)}",
            "Allowed: an object with exactly the fields `role` and `content`",
            "Add what is missing, delete what is too much",
        )
    role, content = message["role"], message["content"]
    if role not in _ROLES:
        raise line_error(
            path, number, f"the role of {where} is {shown(role)}", _ROLES_ALLOWED, "Use one of these roles"
        )
    if not isinstance(content, str) or not content or content.isspace():
        raise line_error(
            path,
            number,
            f"the content of {where} is {shown(content)}",
            "Allowed: a text that is not blank",
            "Fill in the content, or delete the message",
        )
    return {"role": role, "content": content}
