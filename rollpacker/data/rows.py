"""Reads the rows of a prompt file and gives their fields our names.

Invariant: what comes back has an `id`, and the fields that `rollpacker.data.prompts` reads, whatever the file calls
them. In this order:

* columns are renamed as the configuration says; without that, verl's schema (`data_source`, `prompt`,
  `reward_model.ground_truth`, `extra_info`) is recognised by the first row;
* a `prompt` that is a list of messages is `messages`;
* the ground truth is cut to what follows `answer_after`;
* where the first row has no `id`, ids are made: a digest of what the prompt is read from, so that they stay when the
  file is sorted or extended. Rows that are equal are numbered, over all files that are read together.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from rollpacker.config.sections.data import CODE_FIELDS
from rollpacker.data.file_listing import data_files
from rollpacker.data.jsonl import JsonLine, read_json_lines, shown
from rollpacker.data.table_formats import read_table, table_format
from rollpacker.data.test_cases import is_filled

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator, Mapping

    from rollpacker.config.sections.data import PromptFile

JUDGE_FIELDS = ("rubric", "reference_answer")
READ_FIELDS = frozenset({"id", "domain", "prompt", "messages", "ground_truth", *CODE_FIELDS, *JUDGE_FIELDS})
"""What a prompt is read from; all others are kept as its row."""

_OF_VERL = {"domain": "data_source", "ground_truth": "reward_model.ground_truth"}
_ID_BYTES = 8
"""Of a digest: one pair in 4 billion prompts would be equal by chance."""


def read_rows(file: PromptFile, *, kind: str = "prompt file") -> Iterator[JsonLine]:
    """Yield the rows of a file, or of the files of a folder, as they are.

    Raises:
        DataError: What is named is not there, or cannot be read.
    """
    for path in data_files(file):
        yield from read_table(path, kind=kind) if table_format(path) else read_json_lines(path, kind=kind)


def read_prompt_rows(file: PromptFile, repeats: Counter[str]) -> Iterator[JsonLine]:
    """Yield the rows of a file with the fields of prompts.

    Args:
        file: Of prompts.
        repeats: How often each made id was made before, in this file or another; it is counted on.

    Raises:
        DataError: As above; or a column is missing, or the ground truth has no mark.
    """
    columns: Mapping[str, str] = file.columns
    has_ids = True
    for index, row in enumerate(replace(row, file=file) for row in read_rows(file)):
        if index == 0 and not columns and _is_verl(row):
            columns = {name: column for name, column in _OF_VERL.items() if name != "domain" or file.domain is None}
        line = row.with_columns(columns) if columns else row
        if not is_filled(line.fields.get("messages")) and _holds_objects(line):
            line = _with(line, messages=line.fields["prompt"])
        # without the field, its column may be called otherwise
        if file.answer_after is not None and line.fields.get("ground_truth", "") is not None:
            line = _with(line, ground_truth=_answer(line, file.answer_after))
        if index == 0:
            has_ids = line.fields.get("id") is not None
        if not has_ids:
            line = _with(line, id=_made_id(line, repeats))
        yield line


def _is_verl(row: JsonLine) -> bool:
    model = row.fields.get("reward_model", {})
    has_answer = model is None or (isinstance(model, dict) and "ground_truth" in model)
    return "data_source" in row.fields and "prompt" in row.fields and has_answer


def _holds_objects(line: JsonLine) -> bool:
    prompt = line.fields.get("prompt")
    return isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt)


def _with(line: JsonLine, **fields: object) -> JsonLine:
    return replace(
        line, fields=line.fields | fields, made=line.made | {name for name in fields if line.fields.get(name) is None}
    )


def _answer(line: JsonLine, mark: str) -> str:
    value = line.require("ground_truth")
    _, found, answer = str(value).rpartition(mark)
    if not found or not answer.strip():
        raise line.error(
            f"`ground_truth` is {shown(value)}, with nothing after the mark answer_after={mark!r}",
            "Allowed: a text that ends with the mark and the answer",
            "Correct the row or the mark, or leave out `answer_after`",
        )
    return answer.strip()


def digest_of(made_id: str) -> str:
    """The digest of a made id, without its number: it is the same whatever else is read."""
    return made_id.partition("-")[0]


def _made_id(line: JsonLine, repeats: Counter[str]) -> str:
    if line.fields.get("id") is not None:
        raise line.error(
            "there is an `id`, and the first row has none",
            "Allowed: ids of all rows, or of none",
            "Complete the ids, or take them out",
        )
    content = {name: line.fields[name] for name in sorted(READ_FIELDS & line.fields.keys() - {"id"})}
    digest = hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=_ID_BYTES).hexdigest()
    repeats[digest] += 1
    return digest if repeats[digest] == 1 else f"{digest}-{repeats[digest]}"
