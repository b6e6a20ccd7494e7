"""The base class, types and markers of the configuration's sections."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Final, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

LARGEST: Final = 1_000_000_000
"""Upper limit of counts, sizes and rates. No run reaches it, and the product of two such numbers fits into the 64 bits
of torch, vLLM and the operating system."""
SMALLEST: Final = 1e-9
"""Lower limit of numbers above 0: a quotient by it stays finite in float32."""
LONGEST_S: Final = 1_000_000
"""Upper limit of times, 11 days: in milliseconds it fits into the 32 bits of poll()."""
SHORTEST_S: Final = 0.001
"""Lower limit of times above 0: a shorter timer may be rounded to none."""
LARGEST_SEED: Final = 2**32 - 1
"""numpy, which vLLM seeds, takes 32 bits; torch takes 64."""
MOST_WORKERS: Final = 100_000_000
"""Of engines, ranks and GPUs: more than any cluster has. `rollpacker plan` probes with a number that all degrees
divide; a real run has as many as its machine can hold (`rollpacker.runtime.placing.capacity`)."""
CEILINGS: Final = frozenset({LARGEST, LONGEST_S, MOST_WORKERS})
"""Upper limits of a type, not of a key: errors name them, help texts leave them out."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The text for a type that a validator converts from other types; metadata of `Annotated`."""

    words: str
    """Such as `a path, or a list of paths`."""


class OnlyWith:
    """The condition under which a key has an effect; metadata of `Annotated`, on a key or a section.

    Args:
        key: Dotted, of the whole configuration: a field, or a property of a section.
        values: It has one of these, or contains one where it is a tuple. None: it is set, and neither false nor 0.
        words: The condition as the end of `a run with`, where no key says it.
    """

    def __init__(self, key: str, *values: str, words: str = "") -> None:
        self.key = key
        self.values = values
        self.words = words

    def __str__(self) -> str:
        return self.words or f"{self.key}={' or '.join(self.values) or '...'}"


class NotInFingerprint:
    """Marks a key or a section that does not define a run's result; metadata of `Annotated`.

    It changes only where or how fast the same result is reached, how long the run goes on, or what it is called; it
    may differ between two attempts of a run.

    Args:
        keys: The keys of a section that are meant. None: the whole field.
    """

    def __init__(self, *keys: str) -> None:
        self.keys = keys


NOT_IN_FINGERPRINT: Final = NotInFingerprint()
REAL_RUN: Final = OnlyWith("backend.name", "ray")
MODELLED_RUN: Final = OnlyWith("backend.name", "sim")


class Section(BaseModel):
    """A node of the tree."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        arbitrary_types_allowed=False,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_what_names_no_file(cls, value: object, info: ValidationInfo) -> object:
        """Pathlib takes an empty name for the current folder, and a null character, which no path has."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        is_path = annotation is Path or Path in get_args(annotation)
        if is_path and isinstance(value, str) and (not value or "\0" in value):
            raise PydanticCustomError("path_type", "Input should be a path")
        return value


def _refuse_boolean(value: object) -> object:
    """Python takes True for 1."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_type", "Input should be a number")
    return value


def _refuse_number(value: object) -> object:
    """Pydantic takes 1 for True."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("boolean_type", "Input should be true or false")
    return value


Flag = Annotated[bool, BeforeValidator(_refuse_number)]
"""True or false."""
Count = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=0, le=LARGEST)]
"""A number of things, or a size."""
WorkerCount = Annotated[Count, Field(le=MOST_WORKERS)]
"""Engines, ranks or GPUs."""
Seed = Annotated[int, BeforeValidator(_refuse_boolean), Field(ge=0, le=LARGEST_SEED)]
"""Seed of a random number generator."""
Number = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=-LARGEST, le=LARGEST)]
"""A real number."""
Positive = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=SMALLEST, le=LARGEST)]
"""A real number above 0."""
Seconds = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=0, le=LONGEST_S)]
"""A time that may be 0."""
PositiveSeconds = Annotated[float, BeforeValidator(_refuse_boolean), Field(ge=SHORTEST_S, le=LONGEST_S)]
"""A time above 0."""


def exact(factor: float) -> Fraction:
    """The exact fraction of a decimal number: 1.1 is 11/10, not the nearest double."""
    return Fraction(str(factor))
