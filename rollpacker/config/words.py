"""Words of a command line, as one program hands them to another; each key stands once."""

from __future__ import annotations

from collections.abc import Sequence


def replaced(words: Sequence[str], by: Sequence[str]) -> list[str]:
    """A program's own words and those of its user, who may set the same keys."""
    names = {_key_of(word) for word in by}
    return [*(word for word in words if "=" not in word or _key_of(word) not in names), *by]


def _key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]
