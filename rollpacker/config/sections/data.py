"""The prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer

from rollpacker.config.sections.base import REAL_RUN, Count, Flag, Kind, Positive, Section


class PromptFile(Section):
    """A JSONL file of prompts."""

    path: Path
    domain: str | None = Field(None, min_length=1)
    """Of lines that have no field `domain`."""


def _each_as_mapping(value: object) -> object:
    """One path, or a list whose entries are paths or mappings."""
    entries = value if isinstance(value, list | tuple) else [value]
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and (set(entry) - set(PromptFile.model_fields) or "path" not in entry):
            raise ValueError(
                f"data.path[{index}] has the keys {', '.join(map(str, entry)) or 'none'}.\n"
                "An entry is a path, or {path: PATH} or {path: PATH, domain: NAME}.\n"
                "Correct its keys."
            )
    return [{"path": entry} if isinstance(entry, str | Path) else entry for entry in entries]


def _at_least_one(files: tuple[PromptFile, ...]) -> tuple[PromptFile, ...]:
    if not files:
        raise ValueError("data.path=[] names no file.\nPrompts come from at least one.\nName a JSONL file.")
    return files


def _as_written(files: tuple[PromptFile, ...]) -> Any:
    entries = [str(file.path) if file.domain is None else file.model_dump(mode="json") for file in files]
    return entries[0] if len(entries) == 1 and isinstance(entries[0], str) else entries


PromptFiles = Annotated[
    tuple[PromptFile, ...],
    AfterValidator(_at_least_one),
    BeforeValidator(_each_as_mapping),
    PlainSerializer(_as_written),
    Kind("a path, or a list whose entries are paths or {path: PATH, domain: NAME}"),
]
"""In the configuration: `prompts.jsonl`, or `[math.jsonl, {path: taco.jsonl, domain: code}]`."""


class DataSection(Section):
    """The prompts."""

    path: PromptFiles | None
    """JSONL files; each line has `id`, `domain`, `messages` or `prompt`, and `ground_truth`, test cases or a `rubric`:
    `rollpacker help data` shows one of each kind. A file in the form {path: PATH, domain: NAME} has a domain for lines
    without one. null in a modelled run without prompt files."""
    max_prompt_tokens: Count = Field(1024, ge=1)
    """Longest prompt, chat template included."""
    long_prompts: Annotated[Literal["drop", "truncate_left", "truncate_right", "error"], REAL_RUN] = "drop"
    """For longer prompts, before the run starts: drop and count them; shorten their longest text at its left or right
    end, never the chat template around it; or refuse to start."""
    domain_weights: dict[str, Positive] = Field(default_factory=dict)
    """Share of each domain in every batch; empty means the shares of the files."""
    shuffle: Flag = True
    """A new order in every epoch, from `run.seed`."""
    chat_template: Annotated[Path | None, REAL_RUN] = None
    """A Jinja file that turns `messages` into the text the model sees; null takes the tokenizer's own."""
    template_arguments: Annotated[dict[str, bool | int | str], REAL_RUN] = Field(default_factory=dict)
    """Variables of the chat template, such as `enable_thinking: false` of Qwen3's."""
    system_prompt: Annotated[str | None, REAL_RUN] = Field(None, min_length=1)
    """The first message of every prompt that has no system message."""
    plain_as_chat: Annotated[Flag, REAL_RUN] = False
    """A `prompt` goes through the chat template too, as one message of the user; else the model sees it as it is."""

    @property
    def files(self) -> tuple[PromptFile, ...]:
        """The prompt files, which every real run has."""
        assert self.path is not None
        return self.path


class ScoredDataSection(Section):
    """The prompts of the responses that are scored."""

    path: PromptFiles
    """JSONL files, as `rollpacker train --help` describes them."""
