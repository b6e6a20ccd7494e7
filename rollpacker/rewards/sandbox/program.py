r"""Extracts the program from a response.

It is the last fenced block of Markdown that is not blank: of those marked as Python (`python`, `py`, `python3`) where
there is one, so that the output shown behind a program is not run in its place; else of all, however they are marked.
Without a fence it is the whole text. Thoughts hold no program (see `thoughts`).

A fence may follow the mark of a list, or words on its line, if its block ends. Behind words a block counts only where
there is no other one, unless it is marked as Python and no Python block whose fence begins a line stands before it:
words behind a program may lead to a call of it. A closing fence may stand behind the last line of the program, and
precede tags such as `</answer>`. A block loses the indentation of its fence, as that of a list has one, and lines may
end with `\r\n`. A fence with a mark begins a block also where the one before it has no end.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from rollpacker.rewards.thoughts import FENCED_BLOCK, without_thoughts

_LIST_MARK = re.compile(r"[-+*]|\d+[.)]")
_LINE_END = re.compile(r"\r\n?")
_BLOCK = re.compile(FENCED_BLOCK, re.DOTALL | re.MULTILINE | re.VERBOSE)
_PYTHON = re.compile(r"\s*(\{\s*\.?)?py(?!con|tb)", re.IGNORECASE)
"""The mark of a program, also `{.python}`; `pycon` is that of a session with Python, `pytb` that of a traceback."""


class _Block(NamedTuple):
    body: str
    is_python: bool
    is_closed: bool


def find_program(response_text: str) -> str | None:
    """Give the program, or None where there is none."""
    blocks, aside = _candidates(response_text)
    if blocks := blocks or aside:
        return next((block.body for block in reversed(blocks) if block.body.strip()), None)
    text = without_thoughts(response_text)
    return text if text.strip() else None


def is_cut_off(response_text: str) -> bool:
    """Whether a response that ended at the length limit ended before its program did."""
    blocks, _ = _candidates(response_text)
    return not blocks or not blocks[-1].is_closed


def _candidates(response_text: str) -> tuple[list[_Block], list[_Block]]:
    """Give the blocks of which the last one is the program, and those that count only where there are none of these."""
    blocks, aside = list[_Block](), list[_Block]()
    may_follow_words = True
    for before, _, mark, body, last, closing in _BLOCK.findall(_LINE_END.sub("\n", without_thoughts(response_text))):
        is_python, is_behind_words = _PYTHON.match(mark) is not None, bool(_LIST_MARK.sub("", before).strip())
        if is_behind_words and not closing:
            continue
        program = _without_indentation(body + last.rstrip(), len(before))
        is_aside = is_behind_words and not (is_python and may_follow_words)
        (aside if is_aside else blocks).append(_Block(program, is_python, bool(closing)))
        if is_python and program.strip() and not is_behind_words:
            may_follow_words = False
    python = [block for block in blocks if block.is_python]
    return python if any(block.body.strip() for block in python) else blocks, aside


def _without_indentation(body: str, width: int) -> str:
    """Take up to so many characters of white space from each line, no more than the first one that is not blank has."""
    first = re.search(r"^[ \t]*(?=\S)", body, re.MULTILINE)
    width = min(width, len(first[0])) if first else 0
    return re.sub(rf"^[ \t]{{1,{width}}}", "", body, flags=re.MULTILINE) if width else body
