"""WALK: go from one number to another in steps of 1 to 4, saying where you are.

    prompt    3 20 :
    response  +4 7 +1 8 +4 12 +4 16 +4 20

Its lengths are long-tailed by nature: the distance follows a log-normal distribution, and which steps to take is the
model's choice. The answers worked out here are long-tailed, too, and have one bad habit for reinforcement learning
to remove: every second `+2` is added as if it were `+1`. A model that imitates them perfectly is right in 56 % of
walks; one that avoids `+2`, or adds it correctly, in all of them.

`rollpacker.rewards.walk` scores the responses.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

DOMAIN = "walk"
"""The `domain` field of the prompt file."""

NUM_PLACES = 200
"""Walks stay between 0 and this, exclusive; each place is one token."""

LARGEST_STEP = 4
"""As the reward allows."""

MEDIAN_DISTANCE = 8.0
"""Half of the right responses are shorter than 10 tokens."""

DISTANCE_SIGMA = 1.6
"""Of the logarithm of the distance. Every 50th walk crosses all places: 18 times the median length."""

HABIT_STEP = 2
"""The step that the worked-out answers get wrong. It is neither the fastest nor the slowest, so that unlearning it
leaves lengths as they are."""

HABIT_PROBABILITY = 0.5

PAD, END, COLON = "<pad>", "<eos>", ":"

WORDS = (
    PAD,
    END,
    COLON,
    *(f"+{step}" for step in range(1, LARGEST_STEP + 1)),
    *(str(place) for place in range(NUM_PLACES)),
)
"""Every word of the language; the index is the token."""

FIRST_PLACE = WORDS.index("0")


class Example(NamedTuple):
    """Words, separated by white space."""

    prompt: str
    answer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Language:
    """What a small model is warmed up with. The first words are those of `WORDS`, so that places have equal tokens."""

    words: tuple[str, ...]
    example: Callable[[random.Random], Example]


class Walk(NamedTuple):
    """One task."""

    start: int
    target: int

    @property
    def prompt(self) -> str:
        return f"{self.start} {self.target} {COLON}"

    @property
    def ground_truth(self) -> str:
        return f"{self.start} {self.target}"


def draw_walk(rng: random.Random) -> Walk:
    """Draw a walk of log-normal distance that fits between the first and the last place."""
    distance = int(rng.lognormvariate(math.log(MEDIAN_DISTANCE), DISTANCE_SIGMA))
    distance = min(max(distance, 1), NUM_PLACES - 1)
    start = rng.randint(0, NUM_PLACES - 1 - distance)
    return Walk(start, start + distance)


def work_out(walk: Walk, rng: random.Random, *, habit_probability: float = HABIT_PROBABILITY) -> str:
    """Write an answer with random steps; right unless the bad habit showed."""
    words = []
    place = walk.start
    while place < walk.target:
        step = rng.randint(1, min(LARGEST_STEP, walk.target - place))
        is_slip = step == HABIT_STEP and rng.random() < habit_probability
        place += step - 1 if is_slip else step
        words += [f"+{step}", str(place)]
    return " ".join(words)


def _worked_out(rng: random.Random) -> Example:
    walk = draw_walk(rng)
    return Example(walk.prompt, work_out(walk, rng))


WALKS = Language(words=WORDS, example=_worked_out)


Record = dict[str, object]
"""What a line of a prompt file says beside its id."""

_Draw = Callable[[int, random.Random], Record]
"""Draws what stands at a place of a file."""


def walk_record(_number: int, rng: random.Random) -> Record:
    """Draw a walk, at any place."""
    walk = draw_walk(rng)
    return {"domain": DOMAIN, "prompt": walk.prompt, "ground_truth": walk.ground_truth}


def prompt_file(num_prompts: int, rng: random.Random, *, draw: _Draw = walk_record) -> str:
    """Write the lines of a prompt file as users have them."""
    return _lines(draw(number, rng) for number in range(num_prompts))


def unseen_file(num_prompts: int, rng: random.Random, prompts: str, *, draw: _Draw = walk_record) -> str:
    """Write the lines of a held-out file: different prompts, none of them in the lines of a prompt file."""
    known = {json.loads(line)["prompt"] for line in prompts.splitlines()}
    records: list[Record] = []
    while len(records) < num_prompts:
        record = draw(len(records), rng)
        if record["prompt"] not in known:
            known.add(record["prompt"])
            records.append(record)
    return _lines(records)


def _lines(records: Iterable[Record]) -> str:
    numbered = ({"id": f"{record['domain']}-{number:05d}", **record} for number, record in enumerate(records))
    return "".join(json.dumps(record) + "\n" for record in numbered)
