"""Compares the output of a program with the expected one; runs outside the sandbox, on plain data.

Texts are equal when their lines are, white space at their ends aside. In a line:

* a number that is expected with a fraction or an exponent may be written differently, and differ by rounding;
* one that is expected without may be written with a fraction or an exponent that changes nothing (`9.0`, `1e9`);
* leading zeros, a plus sign, and other characters than 0 to 9 make a word text, which is equal only to itself;
* a line of nothing but numbers may be spaced otherwise. Where such lines are indented differently, as in a pyramid of
  numbers, their indentation counts: it is the shape that was asked for.

Values are equal as in Python, a tuple counting as the list that JSON has for it, a number with a fraction to rounding.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Iterable

_ROUNDING = 1e-6
"""Relative or absolute, as most programming contests allow."""

_MOST_DIGITS = 50
"""Of a number; a longer word is compared as text."""

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)?(?P<fraction>\.[0-9]*)?(?<=[0-9.])(?P<exponent>[eE][+-]?[0-9]{1,3})?")
"""As programs write one: no plus sign, no leading zero."""

_WHITE = " \t\r\v\f"
_SPACES = re.compile(f"([{_WHITE}]+)")


def is_same_text(given: str, expected: str) -> bool:
    """Compare what a program wrote."""
    given_lines, expected_lines = _lines(given), _lines(expected)
    if given_lines == expected_lines:
        return True
    if len(given_lines) != len(expected_lines):
        return False
    is_shaped = len({_indentation(line) for line in expected_lines if line}) > 1
    return all(
        one == other or _is_same_line(one, other, is_shaped=is_shaped)
        for one, other in zip(given_lines, expected_lines, strict=True)
    )


def is_one_of(given: object, accepted: Iterable[object]) -> bool:
    """Compare what a function returned, decoded, with JSON values."""
    try:
        return any(_is_same(given, expected) for expected in accepted)
    except (RecursionError, ValueError):  # a key of more digits than Python writes as text
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip(_WHITE) for line in text.rstrip(_WHITE + "\n").split("\n")]


def _indentation(line: str) -> str:
    return line[: len(line) - len(line.lstrip(_WHITE))]


def _is_same_line(given: str, expected: str, *, is_shaped: bool) -> bool:
    if is_shaped and _indentation(given) != _indentation(expected):
        return False
    ours, theirs = (_SPACES.split(line) for line in (given, expected))
    if all(_is_number(word) for word in theirs[::2] if word):
        ours, theirs = ([word for word in words[::2] if word] for words in (ours, theirs))
    return len(ours) == len(theirs) and all(
        one == other or _is_same_number(one, other) for one, other in zip(ours, theirs, strict=True)
    )


def _is_number(word: str) -> bool:
    return len(word) <= _MOST_DIGITS and word not in {"-", ".", "-."} and _NUMBER.fullmatch(word) is not None


def _is_same_number(given: str, expected: str) -> bool:
    if not (_is_number(given) and _is_number(expected)):
        return False
    if not _is_whole(expected):
        number = float(expected)
        return math.isfinite(number) and math.isclose(float(given), number, rel_tol=_ROUNDING, abs_tol=_ROUNDING)
    return not _is_whole(given) and decimal.Decimal(given) == decimal.Decimal(expected)


def _is_whole(word: str) -> bool:
    """Whether a number is written without fraction and exponent."""
    return word.removeprefix("-").isdigit()


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
            by_name = {
                json.dumps(key) if isinstance(key, int | float | None) else key: value for key, value in given.items()
            }
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
