"""Functions that score a response: how they are named, called and read. The user's own and ours are the same.

    def score(response, ground_truth):                       # my_reward.py, with reward.function=my_reward.py:score
        return 1.0 if response.strip() == ground_truth else 0.0

A function takes any of these parameters, by name:

* `prompt`: the line's messages, a list of {role, content}, or its text where it has a plain `prompt`;
* `response`: the text, decoded without special tokens;
* `ground_truth`: the line's answer as text; empty where it has none. If no line has one, a function that names it
  without a default is refused;
* `row`: the line's other fields, a dict;
* `is_truncated`: whether the response was cut, at the length limit or in its environment.

It returns a number; or a pair of a number and a reason, a word in snake_case; or a dict of `score`, perhaps a `reason`,
and other numbers, which the tables keep as its parts. A reason of None is none. One of `FAILURES` is kept with `own_`
before it: those say that a check failed, and the function has scored. It may be `async`. A module may have a function
`prepare_scoring()`, which runs once before the first call. It may take two minutes, with the import, and any memory.

Invariant: whatever a function does, the outcome is a score with a finite reward.
"""

from __future__ import annotations

import asyncio
import inspect
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from inspect import Parameter
from numbers import Real
from typing import Any

from rollpacker.config.python_names import LONGEST_TEXT, UnusableFunction, in_words, load_named, parameters_of
from rollpacker.protocols.reward import LARGEST_REWARD
from rollpacker.rewards.scores import CHECKER_CRASHED, FAILURES, NOT_FINITE, WRONG_RESULT, Score

PARAMETERS = ("prompt", "response", "ground_truth", "row", "is_truncated")

_PARAMETERS_ELSEWHERE = {
    **dict.fromkeys(("solution_str", "completions"), "`response`"),
    "prompts": "`prompt`",
    "labels": "`ground_truth`",
    **dict.fromkeys(("data_source", "extra_info"), "a field of `row`"),
}
"""What functions of veRL and TRL, and servers of OpenRLHF, take."""

SCORED = "scored"
"""The reason of a function that gives none."""

_PREPARE = "prepare_scoring"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one call."""

    score: Score
    parts: dict[str, float] = field(default_factory=dict)
    problem: str = ""
    """What was wrong with the call, in words; empty where the score is the function's own."""


class RewardFunction:
    """A function that scores, with the parameters that it takes."""

    def __init__(self, function: Callable[..., object]) -> None:
        """Take a function.

        Raises:
            UnusableFunction: It has a parameter that no response can fill.
        """
        self._function = function
        self._names = parameters_of(function, PARAMETERS, elsewhere=_PARAMETERS_ELSEWHERE)
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def needed(self) -> tuple[str, ...]:
        """Those of `PARAMETERS` that it names without a default."""
        parameters = inspect.signature(self._function).parameters
        return tuple(name for name in self._names if name in parameters and parameters[name].default is Parameter.empty)

    def __call__(self, arguments: Mapping[str, Any]) -> Outcome:
        """Score one response; `arguments` has a value for each of `PARAMETERS`. May never return."""
        try:
            value = self._function(**{name: arguments[name] for name in self._names})
            if inspect.isawaitable(value):
                self._loop = self._loop or asyncio.new_event_loop()
                value = self._loop.run_until_complete(value)
            return outcome_of(value)
        except (Exception, SystemExit) as error:  # noqa: BLE001 a response's boundary: its check ends no run
            return Outcome(score=CHECKER_CRASHED, problem=f"it raised {in_words(error, __file__)}")


def load_function(source: str) -> RewardFunction:
    """Import a function and prepare it.

    Raises:
        UnusableFunction: There is none, or its module cannot be imported.
    """
    function = load_named(source, prepare=_PREPARE)
    if not callable(function) or inspect.isclass(function):
        place, _, name = source.rpartition(":")
        what = "a class" if inspect.isclass(function) else reprlib.repr(function)
        raise UnusableFunction(f"`{name}` of {place} is {what}, which is no function")
    return RewardFunction(function)


def outcome_of(value: object) -> Outcome:
    """Read what a function returned, or a server answered for one response."""
    reward: object = value
    reason: object = SCORED
    parts: dict[str, float] = {}
    match value:
        case {"score": own, **others}:
            reward, reason = own, others.pop("reason", SCORED)
            numbers = ((_storable(str(name)), _number(each)) for name, each in others.items())
            parts = {name: each for name, each in numbers if each is not None and _is_fit(each)}
        case (own, why):
            reward, reason = own, why
    reason = SCORED if reason is None else reason
    number = _number(reward)
    if number is None or not isinstance(reason, str):
        wrong = "which is no score" if number is None else "whose reason is no text"
        return Outcome(score=WRONG_RESULT, problem=f"it returned {reprlib.repr(value)}, {wrong}")
    if not _is_fit(number):
        return Outcome(score=NOT_FINITE, problem=f"it returned {number}, which no training bears")
    reason = f"own_{reason}" if reason in FAILURES else _storable(reason[:LONGEST_TEXT])
    return Outcome(score=Score(number, reason), parts=parts)


def _storable(text: str) -> str:
    """Replace surrogates, which no table stores: those of an emoji's JSON that was cut, say."""
    return text.encode(errors="replace").decode()


def _number(value: object) -> float | None:
    """A number as Python, numpy or torch have it; None for anything else."""
    try:
        value = value.item() if hasattr(value, "item") else value
        return float(value) if isinstance(value, Real | Decimal) else None
    except (ValueError, RuntimeError, OverflowError):  # an array of several numbers, an integer of 400 digits
        return None


def _is_fit(number: float) -> bool:
    return abs(number) <= LARGEST_REWARD  # false for NaN
