"""Walks a step per turn, as `rollpacker.environments.walk_turns` takes them: what a model is warmed up with."""

import random

from rollpacker.demo.task import COLON, END, WORDS, Example, Language, draw_walk, work_out


def _worked_out(rng: random.Random) -> Example:
    """The same answer as in one turn; after each step the environment says what is left."""
    walk = draw_walk(rng)
    words = work_out(walk, rng).split()
    turns = [f"{step} {place}" for step, place in zip(words[::2], words[1::2], strict=True)]
    answers = [f" {END} {place} {walk.target} {COLON} " for place in words[1:-1:2]] + [""]
    return Example(walk.prompt, "".join(map("".join, zip(turns, answers, strict=True))))


WALKS_IN_TURNS = Language(words=WORDS, example=_worked_out)
