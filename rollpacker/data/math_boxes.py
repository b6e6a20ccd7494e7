r"""Finds the `\boxed{}` that holds the answer of a text, and which brace closes which."""

from __future__ import annotations

import re

BOX_BEGINS = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace that opens or closes a group of LaTeX, which `\\{` and `\\}` do not; what a backslash escapes is skipped."""
_JOINS_BOXES = re.compile(r"[\s$]*(?:[,;]|and|or|,\s*and|,\s*or)[\s$]*")


def final_boxes(text: str) -> str:
    r"""Cut out the last closed `\boxed{}`, with those before it that belong to it, as in two roots of an equation.

    math-verify alone would join boxes over half a page whenever a comma follows the first.
    """
    start, end, closed_at = 0, 0, closings(text)
    for match in reversed(list(BOX_BEGINS.finditer(text))):
        closed = closed_at.get(match.end())
        if closed is None:
            continue
        if not end:
            end = closed
        elif not _JOINS_BOXES.fullmatch(text, closed, start):
            break
        start = match.start()
    return text[start:end]


def closings(text: str) -> dict[int, int]:
    """The position after each brace that opens, and after the one that closes it."""
    closed_at: dict[int, int] = {}
    opened: list[int] = []
    for match in _BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.end())
        elif match.group() == "}" and opened:
            closed_at[opened.pop()] = match.end()
    return closed_at
