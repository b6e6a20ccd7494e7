"""Text on its way to a person: as it is, and never obeyed.

Names of folders and hosts, ids, domains and reasons are written by others. A console of rich reads `[red]` in them as
markup and `:smile:` as a picture, and a terminal obeys what begins with ESC. So every console of the package is a
`Terminal`, which takes markup from nobody and shows control characters instead of sending them; styles come from
`Text` objects. Pages go through `printable` for the same reason.
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
    "\u2028\u2029\ufff9-\ufffb\U000e0000-\U000e007f"  # other line ends, annotations, tags that nobody sees
    "\ud800-\udfff]"  # bytes of a path that are no text, which no stream could encode
)
_TRAILING_BLANKS = re.compile(" +$", re.MULTILINE)
_PICTURES = 0x2400
"""Of the control characters below a blank, one cell wide each; what else acts becomes the replacement character."""


def printable(text: str) -> str:
    """Replace every character that acts by one that is seen."""
    return _ACTING.sub(_picture, text)


def _picture(found: re.Match[str]) -> str:
    code = ord(found.group())
    return chr(_PICTURES + code) if code < ord(" ") else "\ufffd"


class Terminal(Console):
    """A console that shows plain text as it is."""

    def __init__(self, **options: Any) -> None:
        """Prepare; the options are those of rich's console."""
        super().__init__(**{"highlight": False, **options, "markup": False, "emoji": False})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, without characters that act; control segments are rich's own."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(printable(segment.text), segment.style)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        """Write as rich does, and in a file or pipe without the blanks that fill its columns."""
        text = super()._render_buffer(buffer)
        return text if self.is_terminal else _TRAILING_BLANKS.sub("", text)

    def on_broken_pipe(self) -> None:
        """Leave a reader who went away to the process boundary; rich would end the process with exit code 1."""
        raise BrokenPipeError
