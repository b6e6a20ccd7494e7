"""How long a round would take on engines of each tensor-parallel degree: the planner's first guess.

A round is played by a short model of one engine, the fullest one: sequences are admitted while their tokens fit, decode
together, and the youngest loses its place when the KV cache is full; its tokens are computed again. What a pass takes
was measured (`rollpacker profile`), or follows from a formula; how long the responses are, the last round tells.

The guess is for an order among degrees, not for seconds: engines are taken to share the responses evenly, prompts to be
equally long, and what passes between processes is left out.

What is left of a round is played in the same way, for the decision to go on with it on larger engines.

Source: RollPacker, section 4.2: an offline profile of prefill and decode by degree, batch and length, and memory.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_STRIDE = 0.618
"""Responses are played in steps of this share of their number, so that long ones lie among short ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DegreeCosts:
    """What engines of one degree can do."""

    degree: int
    num_engines: int
    """On all GPUs of the run."""
    max_num_seqs: int
    kv_tokens: int
    """That the KV cache of one engine holds."""
    batch_sizes: tuple[float, ...]
    """Ascending, at least one."""
    pass_s: tuple[float, ...]
    """Seconds of a pass that adds a token to each of so many sequences, without reading what is cached."""
    kv_read_s: float
    """Seconds of a pass for each cached token."""
    prefill_s: float
    """Seconds for each token that is computed before a sequence decodes, or decodes again."""

    def decode_s(self, num_seqs: int) -> float:
        """A pass of any batch size."""
        return interpolated(num_seqs, self.batch_sizes, self.pass_s)


def interpolated(size: float, sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Draw straight lines between ascending sizes that are known: the first value before, the last slope beyond."""
    if size <= sizes[0] or len(sizes) == 1:
        return seconds[0]
    index = min(bisect.bisect_left(sizes, size), len(sizes) - 1)
    slope = (seconds[index] - seconds[index - 1]) / (sizes[index] - sizes[index - 1])
    return seconds[index - 1] + slope * (size - sizes[index - 1])


def fastest_degree(costs: Sequence[DegreeCosts], lengths_tokens: Sequence[int], prompt_tokens: int) -> int:
    """Guess the degree on which a round of such responses ends first; of equal ones the smallest."""
    return min(costs, key=lambda each: (round_s(each, lengths_tokens, prompt_tokens), each.degree)).degree


def round_s(costs: DegreeCosts, lengths_tokens: Sequence[int], prompt_tokens: int) -> float:
    """Play a round on the fullest engine of a degree, and give its seconds."""
    fullest = sorted(lengths_tokens, reverse=True)[:: costs.num_engines]
    return _play(costs, [_Sequence(num_computed=prompt_tokens, length=length) for length in _mixed(fullest)])


class Rest(NamedTuple):
    """What is left of a response."""

    num_tokens: int
    """That it has, with its prompt's."""
    num_remaining: int
    """At least 1."""


def rest_s(costs: DegreeCosts, rests: Sequence[Rest], num_engines: int) -> tuple[float, float]:
    """Play what is left of a round on the fullest of so many engines of a degree.

    Returns:
        Seconds of decoding, and those to compute first what the responses have; engines that hold their KV cache spare
        the latter.
    """
    fullest = sorted(rests, key=lambda rest: rest.num_remaining, reverse=True)[::num_engines]
    prefill_s = costs.prefill_s * sum(rest.num_tokens for rest in fullest)
    sequences = [_Sequence(num_computed=rest.num_tokens, length=rest.num_remaining) for rest in fullest]
    return _play(costs, sequences) - prefill_s, prefill_s


def _play(costs: DegreeCosts, sequences: Sequence[_Sequence]) -> float:
    waiting = deque(sequences)
    running: list[_Sequence] = []
    capacity, seconds, num_cached = max(costs.kv_tokens, 1), 0.0, 0
    while waiting or running:
        while waiting and len(running) < costs.max_num_seqs:
            num_tokens = waiting[0].num_tokens
            if running and num_cached + num_tokens + len(running) >= capacity:
                break
            running.append(waiting.popleft())
            num_cached += num_tokens
            seconds += costs.prefill_s * num_tokens
        batch = len(running)
        num_passes = min(each.length - each.num_generated for each in running)
        if batch > 1 and batch * num_passes > capacity - num_cached:
            num_passes = max(capacity - num_cached, 0) // batch
            if not num_passes:
                preempted = running.pop()
                num_cached -= preempted.num_tokens
                waiting.appendleft(preempted)
                continue
        seconds += num_passes * costs.decode_s(batch)
        seconds += costs.kv_read_s * (num_passes * num_cached + batch * num_passes * (num_passes - 1) / 2)
        num_cached += batch * num_passes
        for each in running:
            each.num_generated += num_passes
        num_cached -= sum(each.num_tokens for each in running if each.num_generated >= each.length)
        running = [each for each in running if each.num_generated < each.length]
    return seconds


@dataclass(slots=True, kw_only=True)
class _Sequence:
    num_computed: int
    """Tokens that it begins with."""
    length: int
    """Tokens that it generates."""
    num_generated: int = 0

    @property
    def num_tokens(self) -> int:
        return self.num_computed + self.num_generated


def _mixed(lengths: Sequence[int]) -> list[int]:
    """Put long ones among short ones, the same way every time."""
    order = sorted(range(len(lengths)), key=lambda index: (index * _STRIDE % 1, index))
    return [lengths[index] for index in order]
