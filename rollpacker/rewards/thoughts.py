"""Separates what a response says from its thoughts.

It says what stands behind the last `</think>` that begins or ends a line, or behind an earlier one where nothing
follows the last; elsewhere a program or an explanation may speak of it. The first `<think>` may stand in the prompt, as
some chat templates write it.

Of that, what stands from a `<think>` at the beginning of a line to the next `</think>`, or to the end without one, are
thoughts, too; but not within a fenced block, which may be a program that writes one. A block without an end reaches to
that of the response.
"""

from __future__ import annotations

import re

FENCED_BLOCK = r"""
    ^([ \t]*
      |(?:(?!```)[^\n])*[^\w\s][ \t]*+(?=`{3,}+[ \t]*+[\w+#.-]*+[ \t\r]*\n)
      |[^\n]*?(?<![`~])(?=[`~]{3,}+[ \t]*(?i:py(?:thon)?)[\d.]*[ \t\r]*\n))
    (?P<fence>`{3,}+|~{3,}+)([^\n`]*)\n
    (.*?)
    (?: ^((?:(?!(?P=fence))[^\n\#])*(?:\#(?:(?!(?P=fence))[^\n])*(?<=\S))?)
        ((?P=fence))[`~]*(?:[ \t]*<[^\s<>]+>)*[ \t\r]*$
      | (?=^[ \t]*(?P=fence)[ \t]*[\w{][^\n`]*$)
      | \Z )
"""
"""For `re.DOTALL | re.MULTILINE | re.VERBOSE`: what stands before the fence, the fence, its mark, the body, what stands
before the closing fence, and that one; the last two are empty where another block begins or the text ends. Behind words
a fence opens a block where it is marked as Python, or is the first one of its line and follows a colon, a list's mark
or another sign; behind a comment's blank it closes nothing. Groups are not possessive: Python 3.11.2 loses what they
matched."""

_END = re.compile(r"^[ \t]*</think>|</think>[ \t\r]*$", re.MULTILINE)
_THOUGHTS = re.compile(
    rf"^[ \t]*<think>.*?(?:</think>|\Z)|(?P<block>{FENCED_BLOCK})", re.DOTALL | re.MULTILINE | re.VERBOSE
)
"""Thoughts, or a fenced block, which stays."""


def without_thoughts(response_text: str) -> str:
    """Give what a response says: all of one without thoughts, nothing where they begin it and do not end."""
    before, *behind = _END.split(response_text)
    said = (_THOUGHTS.sub(r"\g<block>", part) for part in reversed(behind or [before]))
    return next((part for part in said if part.strip()), "")
