r"""Converts published data sets, which a user has downloaded, into prompt files: one table, a few lines for each.

Invariant: a converter reads nothing but the folder, and writes rows that `rollpacker.data.prompts` reads. Column names
are those of the repositories named, and of their well-known copies. Questions that end in one short answer ask for it
in `\boxed{}`, as Qwen's and DeepSeek's model cards do.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import math
import pickle
import zlib
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, ClassVar

from rollpacker.config.sections.data import PromptFile
from rollpacker.core.errors import DataError
from rollpacker.data.file_listing import data_files
from rollpacker.data.jsonl import MAX_LINE_BYTES, JsonLine, shown
from rollpacker.data.math_boxes import BOX_BEGINS, closings
from rollpacker.data.prompts import as_given
from rollpacker.data.rows import read_rows
from rollpacker.data.test_cases import is_filled

Fields = dict[str, Any]

INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."

_BEFORE_DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of the form "
    "Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
_AFTER_DAPO = '\n\nRemember to put your answer on its own line after "Answer:".'
"""What DAPO's prompts have around the question: another form of answer than `\\boxed{}`."""
_MOST_BYTES = 1 << 30
"""Of one problem's unpacked test cases, which zlib may expand a thousandfold."""


class _DataSet(PromptFile):
    """What `rollpacker data` reads."""

    split_choice: ClassVar[str] = "split={}"


_UNPACKING_ERRORS = (
    *(TypeError, ValueError, EOFError, LookupError, AttributeError, OverflowError),
    *(zlib.error, binascii.Error, pickle.UnpicklingError),
)
"""Of a damaged or foreign pickle."""


def _chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def _first(row: JsonLine, *names: str) -> Any:
    """The first of these fields that is filled: copies of a set call them differently."""
    found = next((row.fields[name] for name in names if is_filled(row.fields.get(name))), None)
    if found is None:
        raise row.missing(names, remedy="Give the folder of the data set that `rollpacker data list` names")
    return found


def _text(row: JsonLine, *names: str) -> str:
    """The first of these fields that is filled, a text or a number, as text."""
    value = _first(row, *names)
    return _as_text(row, next(name for name in names if row.fields.get(name) is value), value)


def _as_text(row: JsonLine, name: str, value: object) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # AMC's answers are numbers with a point
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number and not (isinstance(value, str) and value.strip()):
        raise row.error(
            f"`{name}` is {shown(value)}",
            "Allowed: a text that is not blank, or a finite number",
            "Give the folder of the data set that `rollpacker data list` names",
        )
    return str(value)


def _answered(*questions: str, answers: tuple[str, ...] = ("answer",)) -> Callable[[JsonLine], Fields]:
    """Questions with one answer, in columns of these names."""

    def convert(row: JsonLine) -> Fields:
        answer, text = _text(row, *answers), _text(row, *questions).strip()
        return {"messages": _chat(f"{text}\n\n{INSTRUCTION}"), "ground_truth": _in_last_box(answer) or answer}

    return convert


def _in_last_box(text: str) -> str:
    r"""What the last `\boxed{}` that is closed holds; empty without one."""
    closed_at = closings(text)
    begins = [box.end() for box in BOX_BEGINS.finditer(text) if box.end() in closed_at]
    return text[begins[-1] : closed_at[begins[-1]] - 1] if begins else ""


def _gsm8k(row: JsonLine) -> Fields:
    _, mark, answer = _text(row, "answer").rpartition("####")
    if not mark or not answer.strip():
        raise row.error(
            "`answer` has nothing after ####" if mark else "`answer` has no ####",
            "Allowed: a solution that ends with #### and a number",
            "Take openai/gsm8k",
        )
    question = _text(row, "question")
    return {"messages": _chat(f"{question}\n\n{INSTRUCTION}"), "ground_truth": answer.strip().replace(",", "")}


def _dapo(row: JsonLine) -> Fields:
    prompt = _first(row, "prompt")
    text = prompt[0].get("content") if isinstance(prompt, list) and prompt and isinstance(prompt[0], dict) else prompt
    model = row.fields.get("reward_model")
    answer = model.get("ground_truth") if isinstance(model, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise row.error(
            f"`prompt` is {shown(prompt)}", "Allowed: a text, or messages", "Take BytedTsinghua-SIA/DAPO-Math-17k"
        )
    question = text.removeprefix(_BEFORE_DAPO).removesuffix(_AFTER_DAPO).strip()
    return {
        "messages": _chat(f"{question}\n\n{INSTRUCTION}"),
        "ground_truth": (
            _as_text(row, "reward_model.ground_truth", answer)
            if is_filled(answer)
            else _text(row, "solution", "answer")
        ),
    }


def _gpqa(row: JsonLine) -> Fields:
    """The choices in an order that depends on nothing but their texts."""
    question, right = _text(row, "Question").strip(), _text(row, "Correct Answer").strip()
    wrong = [_text(row, f"Incorrect Answer {number}").strip() for number in (1, 2, 3)]
    choices = sorted([right, *wrong], key=lambda text: hashlib.blake2b(f"{question}\n{text}".encode()).digest())
    listed = "\n".join(f"{letter}) {choice}" for letter, choice in zip("ABCD", choices, strict=True))
    instruction = r"Please reason step by step, and put the letter of the right choice within \boxed{}."
    return {"messages": _chat(f"{question}\n\n{listed}\n\n{instruction}"), "ground_truth": "ABCD"[choices.index(right)]}


def _livecodebench(row: JsonLine) -> Fields:
    metadata = _json(row, "metadata") if is_filled(row.fields.get("metadata")) else {}
    entry_point = metadata.get("func_name") if isinstance(metadata, dict) else None
    cases = [*_json(row, "public_test_cases"), *_private_cases(row)]
    form = (
        f"Complete this code:\n\n```python\n{_text(row, 'starter_code')}\n```"
        if is_filled(row.fields.get("starter_code"))
        else "Write a program in Python that reads from standard input and writes to standard output."
    )
    text = f"{_text(row, 'question_content')}\n\n{form}\n\nGive the whole program in one ```python block."
    return {
        "messages": _chat(text),
        "test_cases": cases,
        **({"entry_point": entry_point} if entry_point else {}),
        **{name: row.fields[name] for name in ("difficulty", "platform", "contest_date") if name in row.fields},
    }


def _json(row: JsonLine, name: str) -> Any:
    value = _first(row, name)
    return row.parse_text(name, value, "Allowed: JSON", "Download the file again") if isinstance(value, str) else value


class _TextOnly(pickle.Unpickler):
    """Unpickles a text; refuses every class and function, which a pickle could run."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def _private_cases(row: JsonLine) -> list[Any]:
    """LiveCodeBench packs them: the base64 of a compressed pickle of the text of a JSON list."""
    packed = _first(row, "private_test_cases")
    try:
        unpacker = zlib.decompressobj()
        raw = unpacker.decompress(base64.b64decode(packed, validate=True), _MOST_BYTES)
        if not unpacker.eof:
            raise ValueError("it is cut off, or larger than 1 GB")
        text = _TextOnly(io.BytesIO(raw)).load()
        cases = json.loads(text)
    except _UNPACKING_ERRORS as error:
        raise row.error(
            f"`private_test_cases` cannot be unpacked: {error}",
            "Allowed: the base64 of a compressed pickle of a text of JSON, as LiveCodeBench publishes it",
            "Download the file again",
        ) from error
    if not isinstance(cases, list):
        raise row.error(f"`private_test_cases` holds {shown(cases)}", "Allowed: a list", "Download the file again")
    return cases


def _as_it_is(row: JsonLine) -> Fields:
    """All fields, without the nulls with which a table fills the objects of messages and tools."""
    return row.fields | {name: as_given(row, name) for name in ("messages", "prompt", "tools") if name in row.fields}


@dataclass(frozen=True, slots=True)
class Converter:
    """How a published set becomes a prompt file."""

    name: str
    source: str
    """The repository on the Hub, with the folder or file that is meant."""
    convert: Callable[[JsonLine], Fields]
    """Gives the fields of a prompt but for `id` and `domain`."""
    _: KW_ONLY
    domain: str = "math"
    reward: str = "math"
    """The option of the group `reward` that scores it."""
    inside: str = ""
    """The folder of the repository, where there are several."""
    split: str | None = None
    """Where the folder has several, and this one is meant."""


_AIME = _answered("problem", "Problem", "question", "Question", answers=("answer", "Answer", "solution"))

_CONVERTERS = (
    Converter("gsm8k", "openai/gsm8k", _gsm8k, inside="main"),
    Converter("math500", "HuggingFaceH4/MATH-500", _answered("problem")),
    Converter("aime24", "HuggingFaceH4/aime_2024 or math-ai/aime24", _AIME),
    Converter("aime25", "math-ai/aime25 or yentinglin/aime_2025", _AIME),
    Converter("amc23", "math-ai/amc23", _answered("question", "problem")),
    Converter("dapo-17k", "BytedTsinghua-SIA/DAPO-Math-17k", _dapo),
    Converter("gpqa", "Idavidrein/gpqa (gpqa_diamond.csv)", _gpqa, domain="science", split="gpqa_diamond"),
    Converter("livecodebench", "livecodebench/code_generation_lite", _livecodebench, domain="code", reward="sandbox"),
    Converter("rows", "any table, without change", _as_it_is, domain="", reward=""),
)

CONVERTERS = {each.name: each for each in _CONVERTERS}
"""By name, in the order of `rollpacker data list`."""


@dataclass(slots=True)
class Converted:
    """What came of a conversion, counted as it goes."""

    num_rows: int = 0
    num_repeated: int = 0
    """Rows whose question, and answer, an earlier one has; left out."""
    num_contradicted: int = 0
    """Rows whose question an earlier one has with another answer; left out."""
    num_too_long: int = 0
    """Rows that are too long to be read as a line; left out."""


def convert_rows(converter: Converter, path: Path, split: str | None, counts: Converted) -> Iterator[bytes]:
    """Yield the lines of the prompt file.

    Args:
        converter: Of the data set.
        path: A folder or a file that was downloaded, or hf://ORG/NAME in the cache.
        split: Of a folder that has several; None takes the converter's own, or the only one.
        counts: Is counted up.

    Raises:
        DataError: The folder is not that of the data set, or a row is wrong.
    """
    given = _given(converter, path, split)
    answers: dict[bytes, bytes] = {}
    for number, row in enumerate(read_rows(given, kind="data set"), start=1):
        fields = converter.convert(row)
        if converter.name != "rows":
            question, answer = _digest(fields["messages"]), _digest(fields.get("ground_truth"))
            if (first := answers.get(question)) is not None:
                counts.num_repeated += first == answer
                counts.num_contradicted += first != answer
                continue
            answers[question] = answer
            fields = {"id": f"{converter.name}-{number}", "domain": converter.domain, **fields}
        line = _line(row, fields)
        if len(line) > MAX_LINE_BYTES:
            counts.num_too_long += 1
            continue
        counts.num_rows += 1
        yield line


def files_read(converter: Converter, path: Path, split: str | None) -> tuple[Path, ...]:
    """The files that `convert_rows` reads, given the same."""
    return data_files(_given(converter, path, split))


def _given(converter: Converter, path: Path, split: str | None) -> _DataSet:
    given = _DataSet(path=path)
    folder = given.location / converter.inside
    if converter.inside and folder.is_dir():
        given = _DataSet(path=given.path / converter.inside)
    if given.location.is_dir():
        given = given.model_copy(update={"split": split or converter.split})
    elif split is not None and given.location.exists():
        raise DataError(f"split={split}, and {path} is no folder", "Allowed: a split of a folder", "Leave out split")
    return given


def _line(row: JsonLine, fields: Fields) -> bytes:
    texts = list[str]()
    for name, value in fields.items():
        try:
            texts.append(json.dumps({name: value}, ensure_ascii=False, allow_nan=False)[1:-1])
        except ValueError:
            raise row.error(
                f"`{name}` holds NaN or an infinite number, which JSON does not have",
                "Allowed: finite numbers, and null where there is none",
                "Write null in its place, or leave out the column",
            ) from None
    return f"{{{', '.join(texts)}}}\n".encode()


def _digest(value: object) -> bytes:
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=16).digest()
