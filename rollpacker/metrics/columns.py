"""What a column of a table is: its name, type, unit and meaning, in the form that Parquet keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

SCHEMA_VERSION = 14
"""Grows when a column is added, renamed, removed or changes its meaning or type; files of another one are refused."""

VERSION_KEY = b"rollpacker.schema_version"
"""Where a file's schema metadata holds the version that wrote it."""

ColumnType = Literal["int", "float", "bool", "text", "texts", "floats by name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table."""

    name: str
    type: ColumnType
    unit: str
    """`s`, `tokens`, `nats`, `1` for counts and ratios; empty for text and truth values."""
    description: str
    is_nullable: bool = False

    def to_arrow(self) -> pa.Field:
        return pa.field(
            self.name,
            _ARROW_TYPES[self.type],
            nullable=self.is_nullable,
            metadata={"unit": self.unit, "description": self.description},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSchema:
    """One table: its grain in a sentence, and its columns in order."""

    name: str
    grain: str
    columns: tuple[Column, ...]

    def to_arrow(self) -> pa.Schema:
        return pa.schema(
            [column.to_arrow() for column in self.columns],
            metadata={VERSION_KEY: str(SCHEMA_VERSION).encode(), b"rollpacker.table": self.name.encode()},
        )


_ARROW_TYPES = {
    "int": pa.int64(),
    "float": pa.float64(),
    "bool": pa.bool_(),
    "text": pa.string(),
    "texts": pa.list_(pa.string()),
    "floats by name": pa.map_(pa.string(), pa.float64()),
}


def count(name: str, description: str, *, unit: str = "1", is_nullable: bool = False) -> Column:
    """Things, or another whole number."""
    return Column(name=name, type="int", unit=unit, description=description, is_nullable=is_nullable)


def tokens(name: str, description: str) -> Column:
    """A number of tokens."""
    return count(name, description, unit="tokens")


def seconds(name: str, description: str, *, is_nullable: bool = False) -> Column:
    """A time."""
    return Column(name=name, type="float", unit="s", description=description, is_nullable=is_nullable)


def number(name: str, description: str, *, unit: str = "1", is_nullable: bool = False) -> Column:
    """A real number."""
    return Column(name=name, type="float", unit=unit, description=description, is_nullable=is_nullable)


def text(name: str, description: str, *, is_nullable: bool = False) -> Column:
    """A text."""
    return Column(name=name, type="text", unit="", description=description, is_nullable=is_nullable)


def texts(name: str, description: str) -> Column:
    """Texts in order; null where there are none."""
    return Column(name=name, type="texts", unit="", description=description, is_nullable=True)


def flag(name: str, description: str) -> Column:
    """True or false."""
    return Column(name=name, type="bool", unit="", description=description)


def numbers(name: str, description: str, *, unit: str = "1") -> Column:
    """Real numbers by name; null where there are none."""
    return Column(name=name, type="floats by name", unit=unit, description=description, is_nullable=True)


# Of several tables -------------------------------------------------------------------------------------------------

MODELLED = flag("modelled", "False when measured on real engines, True when computed by a model of them")
DOMAIN = text("domain", "The domain field of the prompt file")
RESPONSE_TURNS = texts(
    "response_turns",
    "response_text in turns: the policy's, what its environment answered, the policy's, ...; null without environments",
)
