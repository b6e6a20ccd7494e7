"""What a small model is warmed up with: the words that it knows, and examples of what it is to imitate."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from rollpacker.demo import task


class Example(NamedTuple):
    """Words, between white space."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """Words and their use; the first words are those of `task.WORDS`, so that places have the same tokens in all."""

    words: tuple[str, ...]
    example: Callable[[random.Random], Example]


def _walk(rng: random.Random) -> Example:
    walk = task.draw_walk(rng)
    return Example(walk.prompt, task.work_out(walk, rng))


WALKS = Language(words=task.WORDS, example=_walk)
"""Of the demo."""
