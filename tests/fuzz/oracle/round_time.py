"""The reference model's own guess of a round's time on engines of each degree: every pass of every sequence is played.

Source: RollPacker, section 4.2; the rules of admission and preemption are those of
`rollpacker.core.round_time_model`, which leaps from change to change.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.core.round_time_model import DegreeCosts


@lru_cache(maxsize=256)
def fastest_degree(costs: tuple[DegreeCosts, ...], lengths: tuple[int, ...], prompt_tokens: int) -> int:
    """Guess the degree on which a round of such responses ends first; of equal ones the smallest."""
    seconds = {each.degree: round_s(each, lengths, prompt_tokens) for each in costs}
    return min(sorted(seconds), key=seconds.__getitem__)


def round_s(costs: DegreeCosts, lengths: tuple[int, ...], prompt_tokens: int) -> float:
    """Play the engine that has the longest responses, token by token.

    A sequence is a pair: the tokens that it has, and the tokens that it ends with.
    """
    longest_first = sorted(lengths, reverse=True)
    share = [longest_first[index] for index in range(0, len(lengths), costs.num_engines)]
    order = sorted(range(len(share)), key=lambda index: (618 * index % 1000, index))  # golden section: long among short
    return _played_s(costs, [(prompt_tokens, prompt_tokens + share[index]) for index in order])


def played_s(costs: DegreeCosts, rests: Sequence[tuple[int, int]], num_engines: int) -> tuple[float, float]:
    """Play what responses lack, on the engine of so many that has the longest; gives decoding and prefill."""
    longest_first = sorted(rests, key=lambda rest: -rest[1])
    share = [longest_first[index] for index in range(0, len(rests), num_engines)]
    prefill_s = costs.prefill_s * sum(had for had, _ in share)
    return _played_s(costs, [(had, had + lacks) for had, lacks in share]) - prefill_s, prefill_s


def _played_s(costs: DegreeCosts, waiting: list[tuple[int, int]]) -> float:
    running: list[tuple[int, int]] = []
    seconds = 0.0
    while waiting or running:
        cached = sum(tokens for tokens, _ in running)
        room = max(costs.kv_tokens, 1) - cached
        if waiting and len(running) < costs.max_num_seqs and (not running or waiting[0][0] + len(running) < room):
            seconds += costs.prefill_s * waiting[0][0]
            running.append(waiting.pop(0))
        elif (room >= 0 or len(running) == 1) and any(tokens == end for tokens, end in running):
            running = [each for each in running if each[0] < each[1]]  # they had nothing to generate
        elif len(running) > max(room, 1):
            waiting.insert(0, running.pop())
        else:
            seconds += pass_s(costs, len(running)) + costs.kv_read_s * cached
            running = [(tokens + 1, end) for tokens, end in running if tokens + 1 < end]
    return seconds


def pass_s(costs: DegreeCosts, num_seqs: int) -> float:
    """Read a pass of any batch size off the line through the two known sizes beside it."""
    points = list(zip(costs.batch_sizes, costs.pass_s, strict=True))
    if num_seqs <= points[0][0] or len(points) == 1:
        return points[0][1]
    lines = list(pairwise(points))
    (size, seconds), (next_size, next_seconds) = next((line for line in lines if num_seqs <= line[1][0]), lines[-1])
    return seconds + (num_seqs - size) / (next_size - size) * (next_seconds - seconds)
