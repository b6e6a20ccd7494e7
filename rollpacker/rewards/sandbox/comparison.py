"""Whether what a program gave is what was expected; runs outside, on plain data.

Texts are equal when their lines are, white space at their ends aside. A number may be written otherwise, and differ by
rounding where the expected one has a fraction; a line of nothing but numbers may be spaced otherwise. Values are equal
as in Python, a tuple counting as the list that JSON has for it, a number with a fraction to rounding.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ROUNDING = 1e-6
"""Relative or absolute, as most judges of programming contests allow."""

_MOST_DIGITS = 50
"""Of a number that rounding touches; a longer word is compared as text."""

_SPACES = re.compile(r"(\s+)")


def is_same_text(given: str, expected: str) -> bool:
    """Compare what a program wrote."""
    given_lines, expected_lines = _lines(given), _lines(expected)
    if given_lines == expected_lines:
        return True
    if len(given_lines) != len(expected_lines):
        return False
    return all(
        one == other or _is_same_line(one, other) for one, other in zip(given_lines, expected_lines, strict=True)
    )


def is_one_of(given: object, accepted: Iterable[object]) -> bool:
    """Compare what a function returned, decoded, with JSON values."""
    try:
        return any(_is_same(given, expected) for expected in accepted)
    except RecursionError:
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _is_same_line(given: str, expected: str) -> bool:
    are_numbers = all(_number(word) is not None for word in expected.split())
    ours, theirs = (line.split() if are_numbers else _SPACES.split(line) for line in (given, expected))
    return len(ours) == len(theirs) and all(
        one == other or _is_same_number(one, other) for one, other in zip(ours, theirs, strict=True)
    )


def _number(word: str) -> float | None:
    if len(word) > _MOST_DIGITS:
        return None
    try:
        return float(word)
    except ValueError:
        return None


def _is_same_number(given: str, expected: str) -> bool:
    one, other = _number(given), _number(expected)
    if one is None or other is None:
        return False
    if expected.lstrip("+-").isdecimal() and given.lstrip("+-").isdecimal():
        return int(given) == int(expected)
    return math.isclose(one, other, rel_tol=_ROUNDING, abs_tol=_ROUNDING)


def _is_same(given: object, expected: object) -> bool:  # noqa: PLR0911 one case per type
    match expected:
        case list():
            return (
                isinstance(given, list | tuple)
                and len(given) == len(expected)
                and all(_is_same(one, other) for one, other in zip(given, expected, strict=True))
            )
        case dict():
            if not isinstance(given, dict) or len(given) != len(expected):
                return False
            by_name = {key if isinstance(key, str) else _json_key(key): value for key, value in given.items()}
            return by_name.keys() == expected.keys() and all(
                _is_same(by_name[key], value) for key, value in expected.items()
            )
        case float():
            if not isinstance(given, int | float):
                return False
            try:
                return math.isclose(given, expected, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
            except OverflowError:  # an integer beyond the floats
                return False
    return type(given) in {int, float, bool, str, type(None)} and given == expected


def _json_key(key: object) -> str:
    """How JSON writes a key that is no text."""
    match key:
        case None:
            return "null"
        case bool():
            return "true" if key else "false"
        case int() | float():
            try:
                return repr(key)
            except ValueError:  # thousands of digits
                return ""
    return ""
