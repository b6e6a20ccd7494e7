"""What is evaluated on held-out prompts, and when: the `evaluation` section."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, model_validator

from rollpacker.config.sections.base import Count, Flag, Kind, Number, OnlyWith, Seconds, Section, Seed
from rollpacker.config.sections.data import PromptFile, entries_of

COLDEST = 0.01
"""Lowest temperature above 0: below it logits overflow, and vLLM samples at it instead."""


def _legal_temperature(value: float | None) -> float | None:
    if value is not None and 0 < value < COLDEST:
        raise ValueError(
            f"The temperature {value:g} is neither 0 nor at least {COLDEST}.\n"
            f"0 takes the likeliest token (greedy); between 0 and {COLDEST} logits overflow.\nSet it to 0, or raise it."
        )
    return value


Temperature = Annotated[Number, Field(ge=0, le=10), AfterValidator(_legal_temperature)]
"""Divides the logits; 0 is greedy."""
Probability = Annotated[Number, Field(gt=0, le=1)]
"""Above 0, at most 1."""


class HeldOutFile(PromptFile):
    """A file of held-out prompts; what it leaves out is as the section says."""

    split_choice: ClassVar[str] = "evaluation.path=[{{path: DIR, split: {}}}]"

    name: str = Field("", pattern=r"^[\w.=-]*$")
    """Of the set; empty takes the file's, without its ending, or that of a whole data set without organisation and
    revision."""
    num_samples: Count | None = Field(None, ge=1)
    temperature: Temperature | None = None
    top_p: Probability | None = None
    top_k: Count | None = None
    max_response_tokens: Count | None = Field(None, ge=1)

    @property
    def set_name(self) -> str:
        of_hub = self.hub_name
        of_path = self.path.stem if of_hub is None or of_hub.inside else of_hub.repository.rpartition("/")[2]
        return self.name or of_path


def _named_apart(files: tuple[HeldOutFile, ...]) -> tuple[HeldOutFile, ...]:
    if not files:
        raise ValueError("evaluation.path=[] names no file.\nnull evaluates nothing.\nName a file, or leave it out.")
    names = [file.set_name for file in files]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(
            f"evaluation.path has two sets named {twice}.\nTables and curves tell sets by their names.\n"
            "Give one of them another: {path: PATH, name: NAME}."
        )
    return files


def _as_written(files: tuple[HeldOutFile, ...]) -> Any:
    return [{"path": file.written} | file.model_dump(mode="json", exclude_defaults=True) for file in files]


HeldOutFiles = Annotated[
    tuple[HeldOutFile, ...],
    AfterValidator(_named_apart),
    BeforeValidator(entries_of("evaluation.path", HeldOutFile)),
    PlainSerializer(_as_written),
    Kind("a path, or a list whose entries are paths or {path: PATH, name: NAME, num_samples: N, temperature: T, ...}"),
]
"""In the configuration: `[aime24.jsonl, {path: math500.jsonl, num_samples: 4}]`."""

_WITH_SETS = OnlyWith("evaluation.path")


class EvaluationSection(Section):
    """Held-out prompts: how good the policy is on what it never trains on. Off while `evaluation.path` is null."""

    path: HeldOutFiles | None = None
    """Prompt files as data.path has them, each a set of its own, named after its file: one path, or a list of paths and
    {path: PATH, name: NAME, num_samples: N, temperature: T, top_p: P, top_k: K, max_response_tokens: L}. Their rewards
    are those of training. No prompt of theirs may be in data.path. Settings of rows are of each file alone, whatever
    data.columns, data.prompt_suffix and the like say: {path: PATH, columns: ..., prompt_suffix: TEXT}."""
    every_steps: Annotated[Count, _WITH_SETS] = 10
    """Evaluates after each so many steps; 0 is never. With when=fill in the next round that can be filled."""
    when: Annotated[Literal["alone", "fill"], _WITH_SETS] = "alone"
    """alone: a round of its own between two steps, for which training waits. fill: in the decode slots that the next
    plain or long round leaves idle, since nothing races there; training waits only as far as decoding becomes slower.
    The evaluations before the first step and after the last one are alone. Modelled, 3,920 responses of a 7B model on
    16 GPUs cost 114 s alone and 42 s as fill, but 144 s where system.stream lends the idle engines to the trainer."""
    grace_s: Annotated[Seconds, OnlyWith("evaluation.when", "fill")] = 30.0
    """So long an evaluation that fills a round may go on when its engines are wanted: by a trainer on the same GPUs,
    when the batch is complete, else by the next policy. Then it is stopped, and a set that lacks a response has no
    score."""
    at_start: Annotated[Flag, _WITH_SETS] = True
    """Before the first step: what training began with."""
    at_end: Annotated[Flag, _WITH_SETS] = True
    """After the last step."""
    num_samples: Annotated[Count, _WITH_SETS] = Field(1, ge=1)
    """Responses per prompt. Small sets need many: the error of avg@32 on the 30 problems of AIME24 is still 1.1 points
    between two checkpoints, and 5 points as a statement about such problems."""
    temperature: Annotated[Temperature, _WITH_SETS] = 1.0
    """Divides the logits before sampling; 0 takes the likeliest token (greedy). 1 is what training samples at by
    default."""
    top_p: Annotated[Probability, _WITH_SETS] = 1.0
    """Samples among the likeliest tokens that have this probability together; 1 is all."""
    top_k: Annotated[Count, _WITH_SETS] = 0
    """Samples among so many likeliest tokens; 0 is all."""
    max_response_tokens: Annotated[Count | None, _WITH_SETS] = Field(None, ge=1)
    """A response that reaches it is cut, and counts with the reward of a cut one; null is
    rollout.max_response_tokens."""
    pass_at: Annotated[tuple[Annotated[Count, Field(ge=1)], ...], _WITH_SETS] = (1, 4, 8)
    """The k of pass@k, the chance that one of k responses passes: the unbiased estimate. A set leaves out those above
    its num_samples."""
    pass_reward: Annotated[Number, _WITH_SETS] = 1.0
    """A response passes with this reward or more."""
    seed: Annotated[Seed, _WITH_SETS] = 0
    """A sample's generator depends on it, on the set, the prompt and the sample, and on nothing else: two steps, runs
    or systems are compared sample by sample."""
    num_texts: Annotated[Count, _WITH_SETS] = 8
    """Of each set, the first response to so many prompts is kept as text, those of the file's beginning each time."""

    @property
    def files(self) -> tuple[HeldOutFile, ...]:
        return self.path or ()

    @property
    def rules(self) -> tuple[HeldOutFile, ...]:
        """The files, each with everything that it takes from the section; only the length limit may be null."""
        inherited = ("num_samples", "temperature", "top_p", "top_k", "max_response_tokens")
        return tuple(
            file.model_copy(
                update={"name": file.set_name}
                | {key: getattr(self, key) for key in inherited if getattr(file, key) is None}
            )
            for file in self.files
        )

    @model_validator(mode="after")
    def _some_k_has_its_samples(self) -> Self:
        most = max((file.num_samples or 1 for file in self.rules), default=0)
        if self.path is not None and self.pass_at and min(self.pass_at) > most:
            raise ValueError(
                f"evaluation.pass_at={list(self.pass_at)} with at most {most} responses to a prompt.\n"
                "pass@k needs k of them.\nRaise evaluation.num_samples, or lower evaluation.pass_at."
            )
        return self
