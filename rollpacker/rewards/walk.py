"""Scores WALK, the demo's task: walk from one number to another in steps of 1 to 4, saying where you are.

For the ground truth `3 20` (start and target) a right response is `+4 7 +4 11 +1 12 +4 16 +4 20`: pairs of a step
and the number it leads to, separated by any white space, the last number being the target. The prompt (`3 20 :`)
is not used. The first mistake decides:

* `malformed`: a word is not the expected step or number, or the last step has no number;
* `wrong_sum`: a number is not the one before plus the step;
* `truncated`: no mistake so far, but the response ended at the length limit;
* `missed_target`: every sum is right, and the last number (or the start, of an empty response) is not the target.

It cannot hang: one pass over the words.
"""

from __future__ import annotations

from rollpacker.rewards.scores import CORRECT, TRUNCATED, UNPARSABLE_GROUND_TRUTH, Score

STEPS = {"+1": 1, "+2": 2, "+3": 3, "+4": 4}

_MALFORMED = Score(0.0, "malformed")
_WRONG_SUM = Score(0.0, "wrong_sum")
_MISSED_TARGET = Score(0.0, "missed_target")

_MAX_DIGITS = 18
"""Longer numbers are malformed; Python refuses to read some of them."""


def score(response: str, ground_truth: str, is_truncated: bool) -> Score:
    """Score one walk."""
    task = read_task(ground_truth)
    if task is None:
        return UNPARSABLE_GROUND_TRUTH
    return _score_walk(response.split(), *task, is_truncated)


def read_task(ground_truth: str) -> tuple[int, int] | None:
    """Give start and target; None where the text is no task, or one that no walk fulfils."""
    match [_number(word) for word in ground_truth.split()]:
        case [int(start), int(target)] if start <= target:
            return start, target
    return None


def _score_walk(words: list[str], start: int, target: int, is_truncated: bool) -> Score:
    position = start
    for step_word, number_word in zip(words[::2], words[1::2], strict=False):
        step, number = STEPS.get(step_word), _number(number_word)
        if step is None or number is None:
            return _MALFORMED
        if number != position + step:
            return _WRONG_SUM
        position = number
    has_half_pair = len(words) % 2 == 1
    if has_half_pair and (words[-1] not in STEPS or not is_truncated):
        return _MALFORMED
    if is_truncated:
        return TRUNCATED
    return CORRECT if position == target else _MISSED_TARGET


def _number(word: str) -> int | None:
    return int(word) if word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS else None
