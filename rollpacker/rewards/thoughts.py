"""Separates what a response says from its thoughts.

It says what stands behind the last `</think>` that begins or ends a line, or behind an earlier one where nothing
follows the last; elsewhere a program or an explanation may speak of it. The first `<think>` may stand in the prompt, as
some chat templates write it.

Of that, what stands from a `<think>` at the beginning of a line to the next `</think>`, or to the end without one, are
thoughts, too; but not within a fenced block, which may be a program that writes one.
"""

from __future__ import annotations

import re

_END = re.compile(r"^[ \t]*</think>|</think>[ \t\r]*$", re.MULTILINE)
_THOUGHTS = re.compile(r"(^[ \t]*```[^\n]*\n.*?^[ \t]*```)|^[ \t]*<think>.*?(?:</think>|\Z)", re.MULTILINE | re.DOTALL)
"""A fenced block, which stays, or thoughts."""


def without_thoughts(response_text: str) -> str:
    """Give what a response says: all of one without thoughts, nothing where they begin it and do not end."""
    before, *behind = _END.split(response_text)
    said = (_THOUGHTS.sub(r"\1", part) for part in reversed(behind or [before]))
    return next((part for part in said if part.strip()), "")
