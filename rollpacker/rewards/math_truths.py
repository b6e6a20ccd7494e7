"""Checks whether the math reward could read a ground truth, from its text alone.

Parsing all answers of a data set by math-verify would take minutes before a run starts (10 ms each), so this finds what
converted data sets get wrong: nothing left between delimiters, braces that do not match, and words for a missing value.
"""

from __future__ import annotations

import re

_DELIMITERS = re.compile(r"\\boxed\b|\\[()\[\]]|[${}]")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)

_MISSING = ("nan", "null", "none", "n/a", "inf", "infinity")
"""How programs write a value that is not there, or no number."""


def problem(ground_truth: str) -> str | None:
    """Explain what is wrong with it, or None."""
    if ground_truth.strip().lstrip("+-").casefold() in _MISSING:
        return "which stands for no value (infinity is written \\infty)"
    if not any(each.isalnum() or not each.isascii() for each in _DELIMITERS.sub("", ground_truth)):
        return "which holds no number, letter or formula"
    depth = 0
    for match in _BRACE.finditer(ground_truth):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth < 0:
            break
    return None if depth == 0 else "whose braces do not match"
