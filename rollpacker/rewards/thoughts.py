"""Separates what a response says from the thoughts before it.

Thoughts end with the last `</think>` that begins or ends a line; elsewhere a program or an explanation may speak of it.
Where a line begins with `<think>` and no such end follows, they end with the next `</think>` wherever it stands, and
without one the response has said nothing. The first `<think>` may stand in the prompt, as some chat templates write it.
"""

from __future__ import annotations

import re

_END = re.compile(r"^[ \t]*</think>|</think>[ \t\r]*$", re.MULTILINE)
_BEGIN = re.compile(r"^[ \t]*<think>", re.MULTILINE)


def without_thoughts(response_text: str) -> str:
    """Give what stands behind the thoughts: all of a response without any, nothing where they do not end."""
    ends = list(_END.finditer(response_text))
    said = response_text[ends[-1].end() :] if ends else response_text
    begin = _BEGIN.search(said)
    return said[begin.end() :].partition("</think>")[2] if begin else said
