"""Three tasks in one prompt file, each scored in its own way: walks by a rule, programs by running, climbs by a model.

    domain   prompt          response                                right if
    walk     3 20 :          +4 7 +1 8 +4 12 +4 16 +4 20             every step adds up (see `task`)
    code     code 7 12 :     print ( 7 + int ( input ( ) ) + 12 )    it prints the sum, for three inputs
    judge    climb 3 20 :    5 11 14 20                              the judge says Yes: it ends at the goal

Lengths of walks and climbs are long-tailed, programs are short and their verdicts slow. The answers worked out here
have bad habits for reinforcement learning to remove: walks add wrongly (see `task`), programs subtract where they
should add, or never end, climbs stop before the goal. The judge is a model of the same kind, trained on
good and bad climbs to say Yes or No.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rollpacker.demo import task
from rollpacker.demo.task import Example, Language

if TYPE_CHECKING:
    import random

YES, NO, ASKED = "Yes", "No", "?"

WORDS = (
    *task.WORDS,
    *("code", "climb", "print", "(", ")", "int", "input", "+", "-", "while", "pass"),
    *(YES, NO, ASKED),
)

TEMPLATE = f"{{{{ question }}}} {{{{ response }}}} {{{{ fence }}}} {ASKED}\n"
"""The judge's template. A fence is words that it does not know."""

_FENCE_WORDS = 3

LARGEST_SUMMAND = 99
"""Of programs."""

LARGEST_CLIMB = 8
"""Of one number of a climb to the next."""

ENDLESS = "while 1 : pass"
ENDLESS_PROBABILITY = 0.02
WRONG_SIGN_PROBABILITY = 0.4
EARLY_END_PROBABILITY = 0.4

CASE_INPUTS = (0, 5, 60)


class Addition(NamedTuple):
    """A task of the domain `code`: to add two numbers to the one that is read."""

    first: int
    second: int

    @property
    def prompt(self) -> str:
        return f"code {self.first} {self.second} {task.COLON}"

    def work_out(self, rng: random.Random) -> str:
        """Write a program; right unless a bad habit showed."""
        if rng.random() < ENDLESS_PROBABILITY:
            return ENDLESS
        sign = "-" if rng.random() < WRONG_SIGN_PROBABILITY else "+"
        return f"print ( {self.first} + int ( input ( ) ) {sign} {self.second} )"


class Climb(NamedTuple):
    """A task of the domain `judge`: to name ever larger numbers up to a goal."""

    start: int
    goal: int

    @property
    def prompt(self) -> str:
        return f"climb {self.start} {self.goal} {task.COLON}"

    def work_out(self, rng: random.Random) -> str:
        """Climb by random steps; right unless the bad habit showed."""
        places = []
        place = self.start
        while place < self.goal:
            place += rng.randint(1, min(LARGEST_CLIMB, self.goal - place))
            places.append(place)
        if rng.random() < EARLY_END_PROBABILITY:
            places = places[: rng.randint(0, len(places) - 1)]
        return " ".join(map(str, places))

    def is_reached_by(self, answer: str) -> bool:
        """Whether the judge should say Yes."""
        return answer.split()[-1:] == [str(self.goal)]


def draw_addition(rng: random.Random) -> Addition:
    """Draw any two numbers."""
    return Addition(rng.randint(1, LARGEST_SUMMAND), rng.randint(1, LARGEST_SUMMAND))


def draw_climb(rng: random.Random) -> Climb:
    """Draw one as long as a walk."""
    return Climb(*task.draw_walk(rng))


def _of_all_tasks(rng: random.Random) -> Example:
    kind = rng.randrange(3)
    if kind == 0:
        walk = task.draw_walk(rng)
        return Example(walk.prompt, task.work_out(walk, rng))
    drawn = draw_addition(rng) if kind == 1 else draw_climb(rng)
    return Example(drawn.prompt, drawn.work_out(rng))


def _of_the_judge(rng: random.Random) -> Example:
    climb = draw_climb(rng)
    answer = climb.work_out(rng)
    if rng.random() < 1 / 3:  # it ends elsewhere, beyond the goal too
        answer = f"{answer} {rng.randrange(task.NUM_PLACES)}"
    read = " ".join((climb.prompt, answer, *[task.PAD] * _FENCE_WORDS, ASKED))
    return Example(read, YES if climb.is_reached_by(answer) else NO)


POLICY = Language(words=WORDS, example=_of_all_tasks)
JUDGE = Language(words=WORDS, example=_of_the_judge)


def _record(number: int, rng: random.Random) -> task.Record:
    """The domains in turn."""
    match number % 3:
        case 0:
            return task.walk_record(number, rng)
        case 1:
            addition = draw_addition(rng)
            cases = [{"input": f"{x}\n", "output": f"{sum(addition) + x}\n"} for x in CASE_INPUTS]
            return {"domain": "code", "prompt": addition.prompt, "test_cases": cases}
        case _:
            climb = draw_climb(rng)
            return {"domain": "judge", "prompt": climb.prompt, "rubric": "The last number is the goal."}


prompt_file = partial(task.prompt_file, draw=_record)
unseen_file = partial(task.unseen_file, draw=_record)
"""As of `task`, of these records."""
