"""Reads the user's prompt files and refuses them at the first row that could not be trained.

Invariant: what comes back has unique ids, valid chat messages, and texts that are not blank, in the order of the files
and of their rows. A row (see `rows`) has

* `id` and `domain` (a file may have a default domain);
* `messages` (a list, or a string that holds the JSON of a list) or `prompt`; with both, `messages` counts;
* the reference of responses: `ground_truth`, an answer as text or number; or test cases (see `test_cases`); or,
  for an LLM judge, `rubric`, `reference_answer` or both. Environments, functions and servers may need none, so that
  whether a row has what its reward needs is checked with the rewards (`rollpacker.rewards.factory.check_references`).

A field that is null is missing, so that a table may mix rows of several kinds. Where there are test cases,
`ground_truth` is ignored; beside a `rubric` it is the reference answer. Other fields are kept as the prompt's `row`,
for the reward; of these, `tools` go to the chat template. Test cases are checked here and not kept: the prompt holds
where its line lies.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import DataError
from rollpacker.core.ids import Domain
from rollpacker.data.file_listing import data_files
from rollpacker.data.jsonl import shown
from rollpacker.data.rows import JUDGE_FIELDS, READ_FIELDS, read_prompt_rows
from rollpacker.data.test_cases import code_fields, is_filled, read_code_reference
from rollpacker.paths import real_path
from rollpacker.protocols.references import AnswerReference, FileLine, JudgeReference, TableRow
from rollpacker.protocols.rollout import Prompt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rollpacker.config.sections.data import PromptFile
    from rollpacker.data.jsonl import JsonLine
    from rollpacker.protocols.references import Place, Reference

_ROLES = ("system", "developer", "user", "assistant", "tool")
"""A chat template may refuse some of them."""


def load_prompts(files: Iterable[PromptFile]) -> tuple[Prompt, ...]:
    """Read every prompt of some files, in their order.

    Raises:
        DataError: A file cannot be read, is empty, or has a wrong row; the message names the row.
    """
    return tuple(prompt for _, prompt in read_prompts(files))


def read_prompts(files: Iterable[PromptFile]) -> Iterator[tuple[JsonLine, Prompt]]:
    """Yield the prompts of some files, each with the line that it was read from; raises as `load_prompts` does."""
    prompts: dict[str, Prompt] = {}
    repeats = Counter[str]()
    earlier: dict[Path, list[PromptFile]] = {}
    for file in files:
        _refuse_repeated(file, earlier)
        for line in read_prompt_rows(file, repeats):
            prompt = _read_prompt(line, file.domain, file.prompt_suffix)
            first = prompts.setdefault(prompt.key, prompt)
            if first is not prompt:
                raise line.error(
                    f"the id {prompt.key!r} was used in {_place(first.line, line.line)} already",
                    'Allowed: an id that no other row has (1 and "1" are the same id)',
                    "Give one of the two rows another id, or delete it",
                )
            yield line, prompt


def _refuse_repeated(file: PromptFile, earlier: dict[Path, list[PromptFile]]) -> None:
    """Refuse a file that an earlier entry has: its prompts would be trained twice. Other columns make other prompts.

    Args:
        file: An entry.
        earlier: Those before, by the files that they have; extended.
    """
    for path in dict.fromkeys(map(real_path, data_files(file))):
        entries = earlier.setdefault(path, [])
        for other in entries:
            if other.columns == file.columns:
                raise DataError(
                    f"The prompt file {path} is listed twice: by {other.written} and by {file.written}",
                    "Allowed: each file once, unless its rows are read by other columns",
                    "Delete one of the two entries",
                )
        entries.append(file)


def _place(place: Place | None, here: Place) -> str:
    assert place is not None
    return str(place).removeprefix(f"{here.path}, ")


def _read_prompt(line: JsonLine, default_domain: str | None, suffix: str | None) -> Prompt:
    key = line.identifier()
    has_messages = is_filled(line.fields.get("messages"))
    wanted: list[tuple[str, ...]] = []
    if not has_messages and "prompt" not in line.fields:
        wanted.append(("messages", "prompt"))
    if default_domain is None and "domain" not in line.fields:
        wanted.append(("domain",))
    if wanted:
        raise line.missing(*wanted)
    has_domain = default_domain is None or is_filled(line.fields.get("domain"))
    domain = _read_text(line, "domain") if has_domain else str(default_domain)
    line.refuse_unprintable("domain", domain)
    text = None
    if has_messages:
        messages = _read_messages(line)
    else:
        text = _read_text(line, "prompt", " or a list of messages")
        messages = ({"role": "user", "content": text},)
    if suffix is not None:
        text = None if text is None else f"{text}\n{suffix}"
        messages = _with_suffix(messages, suffix)
    row = {name: value for name, value in line.fields.items() if name not in READ_FIELDS}
    if is_filled(row.get("tools")):
        row["tools"] = _read_tools(line)
    return Prompt(
        key=key,
        domain=Domain(sys.intern(domain)),
        messages=messages,
        text=text,
        reference=_read_reference(line),
        line=line.line,
        suffix=suffix or "",
        row=row,
    )


def _with_suffix(messages: tuple[dict[str, Any], ...], suffix: str) -> tuple[dict[str, Any], ...]:
    """Append it to the last message of the user; without one, to the last message."""
    users = [index for index, message in enumerate(messages) if message["role"] == "user"]
    last = users[-1] if users else len(messages) - 1
    longer = {**messages[last], "content": f"{messages[last]['content']}\n{suffix}"}
    return (*messages[:last], longer, *messages[last + 1 :])


def _read_text(line: JsonLine, name: str, others: str = "") -> str:
    """Take a text; `others` are values besides that are legal, in words."""
    value = line.require(name)
    if isinstance(value, str) and value and not value.isspace():
        return value
    raise line.error(
        f"`{name}` is {shown(value)}",
        f"Allowed: a text that is not blank{others}",
        f"Fill in `{name}`" if not is_filled(value) else f"Write `{name}` as text",
    )


def _read_reference(line: JsonLine) -> Reference:
    judge_fields = [name for name in JUDGE_FIELDS if is_filled(line.fields.get(name))]
    has_answer = is_filled(line.fields.get("ground_truth"))
    code_field = next(iter(code_fields(line)), None)
    if code_field and line.fields[code_field] == [] and (has_answer or judge_fields):
        code_field = None
    if code_field and judge_fields:
        raise line.error(
            f"the line has both test cases (`{code_field}`) and `{judge_fields[0]}`",
            "Allowed: one kind of reference, since a response has one reward",
            "Delete one of the two",
        )
    if code_field:
        if not isinstance(line.line, FileLine):
            raise line.error(
                f"there are test cases (`{code_field}`) in a table",
                "Allowed: test cases in JSON lines, of which single ones can be read again when a response is scored",
                f"Convert the table: rollpacker data rows from={line.line.path} out=FILE.jsonl",
            )
        return read_code_reference(line)
    if judge_fields:
        rubric = _read_text(line, "rubric") if "rubric" in judge_fields else None
        answer = _read_text(line, "reference_answer") if "reference_answer" in judge_fields else None
        if answer is None and has_answer:
            answer = _read_ground_truth(line)
        return JudgeReference(rubric=rubric, answer=answer)
    if not has_answer:
        references = ["ground_truth", "test_cases", "rubric"]
        # a field of an environment may be called `ground`
        if "ground_truth" not in line.fields and line.misspelt(references, similarity=0.8):
            raise line.missing(references)
        return AnswerReference(text="")
    return AnswerReference(text=_read_ground_truth(line).strip())


def _read_ground_truth(line: JsonLine) -> str:
    """A number is taken as its text, without an exponent: in a formula the `e` of 1e-05 may be Euler's number.

    An empty text is legal: not every reward compares with an answer.
    """
    value = line.require("ground_truth")
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isfinite(value):
        return format(Decimal(repr(value)), "f")
    raise line.error(
        f"`ground_truth` is {shown(value)}",
        "Allowed: a string or a finite number; test cases belong in `test_cases`, instructions for a judge in `rubric`",
        "Write the answer as text",
    )


def _read_messages(line: JsonLine) -> tuple[dict[str, Any], ...]:
    value, name = as_given(line, "messages"), _messages_field(line)
    if isinstance(value, str):
        value = line.parse_text(
            "messages",
            value,
            "Allowed: a list of messages, or a string that holds the JSON of one",
            "Write `messages` as a list, or use the field `prompt` for plain text",
        )
    if not isinstance(value, list) or not value:
        raise line.error(
            f"`{name}` is {shown(value)}",
            "Allowed: a list of at least one message",
            'Write it as [{"role": "user", "content": "..."}]',
        )
    messages = tuple(_read_message(line, message, index) for index, message in enumerate(value))
    if messages[-1]["role"] == "assistant":
        raise line.error(
            f"`{name}` ends with an answer of the assistant",
            "Allowed: a last message of the user, the system or a tool, which the policy then answers",
            "Delete the last message; the expected answer belongs in `ground_truth`",
        )
    return messages


def _messages_field(line: JsonLine) -> str:
    """What the file calls the messages: a `prompt` may hold them."""
    return "prompt" if "messages" in line.made else "messages"


def _read_tools(line: JsonLine) -> list[Any]:
    """What the chat template tells the model of the functions that it may call."""
    allowed, remedy = "Allowed: a list of functions as JSON schemas", "Correct `tools`, or call the field otherwise"
    value = as_given(line, "tools")
    if isinstance(value, str):
        value = line.parse_text("tools", value, allowed, remedy)
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise line.error(f"`tools` is {shown(value)}", allowed, remedy)
    return value


def as_given(line: JsonLine, name: str) -> object:
    """Take a field without what a table adds: each of its objects has the fields of all others, filled with null."""
    value = line.fields[name]
    return _without_nulls(value) if isinstance(line.line, TableRow) else value


def _without_nulls(value: object) -> object:
    match value:
        case dict():
            return {name: _without_nulls(each) for name, each in value.items() if each is not None}
        case list():
            return [_without_nulls(each) for each in value]
        case _:
            return value


def _read_message(line: JsonLine, message: object, index: int) -> dict[str, Any]:
    """The content of a tool may be empty, and that of an assistant who calls tools may be missing.

    Lines that were written from a table may have null in the place of fields that a message lacks.
    """
    where = f"`{_messages_field(line)}[{index}]`"
    if not isinstance(message, dict) or "role" not in message or not message.keys() & {"content", "tool_calls"}:
        raise line.error(
            f"{where} is {shown(message)}",
            "Allowed: an object with the fields `role` and `content`; others are for the chat template",
            "Add what is missing",
        )
    role, content = message["role"], message.get("content")
    if role not in _ROLES:
        raise line.error(f"the role of {where} is {shown(role)}", f"Allowed: {', '.join(_ROLES)}", "Use one of these")
    if content is None and message.get("tool_calls"):
        content = ""
    if isinstance(content, list) and content:
        content = _joined_parts(line, where, content)
    if not isinstance(content, str) or not (is_filled(content) or role == "tool" or message.get("tool_calls")):
        raise line.error(
            f"the content of {where} is {shown(content)}",
            "Allowed: a text that is not blank",
            "Fill in the content, or delete the message",
        )
    return {name: value for name, value in message.items() if value is not None} | {"content": content}


def _joined_parts(line: JsonLine, where: str, parts: list[object]) -> str:
    """The text of content in parts, as OpenAI's API takes it."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    found = [text for text in texts if isinstance(text, str)]
    if len(found) == len(parts):
        return "".join(found)
    raise line.error(
        f"the content of {where} is {shown(parts)}",
        'Allowed: a text, or parts like {"type": "text", "text": "..."}; images and other parts are not read',
        "Leave out the other parts, or the prompt",
    )
