"""The prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, field_serializer

from rollpacker.config.hub_names import SCHEME, HubName, parse_hub_name
from rollpacker.config.keys import nearest
from rollpacker.config.sections.base import REAL_RUN, Count, Flag, Kind, Number, OnlyWith, Positive, Section

CODE_FIELDS = ("test_cases", "input_output", "public_test_cases", "private_test_cases", "test_list", "test")
"""What holds test cases of code, as `rollpacker.data.test_cases` describes them."""

PROMPT_FIELDS = (
    *("id", "domain", "prompt", "messages", "tools", "ground_truth", *CODE_FIELDS, "entry_point"),
    *("rubric", "reference_answer"),
)
"""What a column can be mapped to."""


def _check_fields(key: str, columns: Mapping[Any, object]) -> None:
    """Refuse what maps something that is no field of a prompt."""
    for name in map(str, columns):
        if name not in PROMPT_FIELDS:
            close = nearest(name, PROMPT_FIELDS) or nearest(name, map(str, columns.values()))
            raise ValueError(
                f"{key} maps `{name}`, which is no field of a prompt.\n"
                f"It maps {', '.join(PROMPT_FIELDS)} to columns of the file: {{prompt: question}}.\n"
                + (f"Did you mean `{close[0]}`?" if close else "Write our field first, then the file's column.")
            )


def _known_fields(columns: dict[str, str]) -> dict[str, str]:
    _check_fields("data.columns", columns)
    return columns


class RowSettings(Section):
    """How the rows of prompt files become prompts."""

    domain: str | None = Field(None, min_length=1)
    """Of rows that have no `domain`."""
    columns: Annotated[dict[str, str], AfterValidator(_known_fields)] = Field(default_factory=dict)
    """Where the files have other names: our field and their column, such as {prompt: question, ground_truth: answer}. A
    dotted name leads into a column: reward_model.ground_truth. Without it, verl's schema is recognised."""
    answer_after: str | None = Field(None, min_length=1)
    """The ground truth is what follows the last of these marks in its text: '####' in GSM8K's solutions."""
    prompt_suffix: str | None = Field(None, min_length=1)
    """Added to every prompt, to its last message of the user, on a line of its own: 'Put the answer in \\boxed{}.'"""
    split: str | None = Field(None, min_length=1)
    """Of a folder or a data set that has several, such as train."""


class PromptFile(RowSettings):
    """A file or a folder of prompts."""

    split_choice: ClassVar[str] = "data.split={}"
    """The word that chooses one of its splits."""

    path: Path

    @property
    def hub_name(self) -> HubName | None:
        """The path as the name of a data set, where it begins with hf://."""
        return parse_hub_name(self.path, "dataset") if self.path.parts[:1] == (SCHEME,) else None

    @property
    def location(self) -> Path:
        """Where it lies; of a data set that the cache lacks, its name as a path."""
        name = self.hub_name
        snapshot = name.snapshot if name else None
        return self.path if name is None or snapshot is None else snapshot / name.inside

    @property
    def written(self) -> str:
        """The path, as a user writes it."""
        return str(self.hub_name or self.path)

    def completed(self, settings: RowSettings) -> Self:
        """Take from these settings what is not set; null and {} are, and turn a shared setting off."""
        unset = RowSettings.model_fields.keys() - self.model_fields_set
        return self.model_copy(update={name: getattr(settings, name) for name in unset})

    @field_serializer("path")
    def _as_written(self, _path: Path) -> str:
        return self.written


def entries_of(name: str, kind: type[PromptFile]) -> Callable[[object], object]:
    """Read the files of a key: one path, or a list whose entries are paths or mappings with the fields of `kind`."""
    keys = ", ".join(key for key in kind.model_fields if key != "path")

    def as_mappings(value: object) -> object:
        entries = value if isinstance(value, list | tuple) else [value]
        for index, entry in enumerate(entries):
            if isinstance(entry, dict) and (set(entry) - set(kind.model_fields) or "path" not in entry):
                raise ValueError(
                    f"{name}[{index}] has the keys {', '.join(map(str, entry)) or 'none'}.\n"
                    f"An entry is a path, or {{path: PATH}} with any of {keys}.\n"
                    "Correct its keys."
                )
            if isinstance(entry, dict) and isinstance(columns := entry.get("columns"), dict):
                _check_fields(f"{name}[{index}].columns", columns)
        return [{"path": entry} if isinstance(entry, str | Path) else entry for entry in entries]

    return as_mappings


def _at_least_one(files: tuple[PromptFile, ...]) -> tuple[PromptFile, ...]:
    if not files:
        raise ValueError("data.path=[] names no file.\nPrompts come from at least one.\nName a file.")
    return files


def _as_written(files: tuple[PromptFile, ...]) -> Any:
    entries = [file.model_dump(mode="json", exclude_unset=True) for file in files]
    plain = [entry["path"] if len(entry) == 1 else entry for entry in entries]
    return plain[0] if len(plain) == 1 and isinstance(plain[0], str) else plain


PromptFiles = Annotated[
    tuple[PromptFile, ...],
    AfterValidator(_at_least_one),
    BeforeValidator(entries_of("data.path", PromptFile)),
    PlainSerializer(_as_written),
    Kind("a path, or a list whose entries are paths or {path: PATH, domain: NAME, ...}"),
]
"""In the configuration: `prompts.jsonl`, or `[math.jsonl, {path: taco.jsonl, domain: code}]`."""


SolveRate = Annotated[Number, Field(ge=0, le=1)]


def _ascending(rates: tuple[float, float]) -> tuple[float, float]:
    low, high = rates
    if low >= high:
        raise ValueError(
            f"data.keep_solve_rate={[low, high]} keeps nothing in between.\n"
            "It is the lowest and the highest solve rate of a prompt that is trained.\n"
            "Write the smaller one first: [0.05,0.95]."
        )
    return rates


SolveRates = Annotated[tuple[SolveRate, SolveRate], AfterValidator(_ascending), Kind("[LOW,HIGH], from 0 to 1")]


class DataSection(RowSettings):
    """The prompts."""

    path: PromptFiles | None
    """Files or folders of JSON lines, Parquet, Arrow or CSV, folders of `datasets` (save_to_disk), or data sets in the
    Hugging Face cache: hf://ORG/NAME/FOLDER. Rows have `id`, `domain`, `messages` or `prompt`, and `ground_truth`, test
    cases or a `rubric`: `rollpacker help data` shows one of each kind, and how other columns are read. A file as
    {path: PATH, domain: NAME, columns: ...} has settings of its own; null and {} turn a shared one off. The key is
    null in a modelled run without prompts, and where the environment has prompts."""
    max_prompt_tokens: Count = Field(1024, ge=1)
    """Longest prompt, chat template included."""
    long_prompts: Annotated[Literal["drop", "truncate_left", "truncate_right", "error"], REAL_RUN] = "drop"
    """For longer prompts, before the run starts: drop and count them; shorten their longest text at its left or right
    end, never the chat template around it; or refuse to start."""
    domain_weights: dict[str, Positive] = Field(default_factory=dict)
    """Share of each domain in every batch; empty means the shares of the files."""
    solve_rates: Path | None = None
    """Leaves out prompts that are too easy or too hard for the model: what `rollpacker evaluate model.path=DIR
    evaluation.path=PROMPTS evaluation.num_samples=8 out=FILE` wrote of them, or a run that evaluated them. Prompts that
    are not in it stay. null keeps all."""
    keep_solve_rate: Annotated[SolveRates, OnlyWith("data.solve_rates")] = (0.05, 0.95)
    """With `solve_rates`: keep the prompts whose mean reward there is from the first of these to the second."""
    max_prompts: Count | None = Field(None, ge=1)
    """Train on the first so many prompts of the files, in their order; null takes all."""
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
        """The prompt files with their settings; none in a modelled run without prompts."""
        return tuple(file.completed(self) for file in self.path or ())


class ScoredDataSection(RowSettings):
    """The prompts of the responses that are scored."""

    path: PromptFiles
    """Prompt files, as `rollpacker train --help` describes them."""

    @property
    def files(self) -> tuple[PromptFile, ...]:
        """The prompt files with their settings."""
        return tuple(file.completed(self) for file in self.path)
