"""Arguments that one program passes to another; each key is given once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def replaced(arguments: Sequence[str], by: Sequence[str]) -> list[str]:
    """The arguments of a program, with those of its user in place of the same keys."""
    names = {_key_of(argument) for argument in by}
    return [*(each for each in arguments if "=" not in each or _key_of(each) not in names), *by]


def quoted(path: Path) -> str:
    """A path as the value of an argument, whatever signs it has."""
    escaped = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def shown(value: object) -> str:
    """A value as an argument has it, as far as it needs no quotes."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _key_of(argument: str) -> str:
    return argument.lstrip("+~").partition("=")[0]
