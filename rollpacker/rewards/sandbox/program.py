"""Extracts the program from a response."""

from __future__ import annotations

import re

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.DOTALL | re.MULTILINE)
"""A fenced block of Markdown with any language; one that the end of the text cuts off counts."""


def find_program(response_text: str) -> str | None:
    """Give the last fenced block that is not blank, or the whole text where nothing is fenced; None: there is none."""
    blocks = [body for _, body in _FENCE.findall(response_text)]
    if blocks:
        return next((body for body in reversed(blocks) if body.strip()), None)
    return response_text if response_text.strip() else None


def is_cut_off(response_text: str) -> bool:
    """Whether a response that ended at the length limit ended before its program did."""
    blocks = list(_FENCE.finditer(response_text))
    return not blocks or not blocks[-1][0].rstrip().endswith(blocks[-1][1])
