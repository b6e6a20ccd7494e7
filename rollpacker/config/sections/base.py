"""What every node of the configuration tree is."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Kind:
    """What people are told of a type that a validator makes from something else; metadata of `Annotated`."""

    words: str
    """Such as `a path, or a list of paths`."""


class Section(BaseModel):
    """A node of the tree."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        arbitrary_types_allowed=False,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def exact(factor: float) -> Fraction:
    """The fraction that a user meant by a decimal number: 1.1 is 11/10, not the nearest double."""
    return Fraction(str(factor))
