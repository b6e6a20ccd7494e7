"""Moves on a grid, as a policy writes them."""

from __future__ import annotations

import re

Place = tuple[int, int]
"""Row and column."""

MOVES: dict[str, Place] = {"up": (-1, 0), "down": (1, 0), "left": (0, -1), "right": (0, 1)}

UNKNOWN_MOVE = "Say up, down, left or right."


def move_in(text: str) -> Place | None:
    """The last move that a text names, in any case; None where it names none."""
    words = re.findall(r"[a-z]+", text.lower())
    return next((MOVES[word] for word in reversed(words) if word in MOVES), None)


def beyond(place: Place, move: Place) -> Place:
    """Where a move leads."""
    return place[0] + move[0], place[1] + move[1]
