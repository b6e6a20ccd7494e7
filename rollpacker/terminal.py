"""Consoles that print untrusted text safely.

Names of folders and hosts, ids, domains and reasons come from outside. A console of rich would interpret `[red]` in
them as markup and `:smile:` as a picture, and a terminal executes escape sequences. Every console of the package is
therefore a `Terminal`, which interprets no markup and shows control characters instead of sending them; styles come
from `Text` objects. Pages use `printable` for the same reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType  # noqa: TID251  (the one place)
from rich.segment import Segment

_ACTING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what changes the direction of the text around
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f"  # other line ends, annotations, invisible tags
    "\ud800-\udfff]"  # bytes of a path that are no text, which no stream could encode
)
_TRAILING_BLANKS = re.compile(" +$", re.MULTILINE)
_PICTURES = 0x2400
"""Of the control characters below a blank, one cell wide each; what else acts becomes the replacement character."""


def printable(text: str) -> str:
    """Replace every control character by a visible one."""
    return _ACTING.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(_PICTURES + code) if code < ord(" ") else "\ufffd"


class Terminal(Console):
    """A console that prints text literally."""

    def __init__(self, **options: Any) -> None:
        """Prepare; the options are those of rich's console."""
        super().__init__(**{"highlight": False, **options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, without control characters; control segments are rich's own."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Write as rich does; in a file or pipe without trailing blanks."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else _TRAILING_BLANKS.sub("", text)

    def on_broken_pipe(self) -> None:
        """Raise for the process boundary when the reader has closed; rich would end the process with exit code 1."""
        raise BrokenPipeError
