"""Probes of an engine: prefill, passes at a batch size and context, a round's start, calls to it, KV capacity.

An engine may have a budget of tokens per pass, prompts and decoding sequences together (vLLM's
`max_num_batched_tokens`). Then the prompts of a batch take several passes, and the first sequences decode beside the
prompts of the others. So all moments are of one clock, that of the call: no request is timed from its own first pass.

Prefill is timed with responses of one token, from the first pass to the last token.

Decoding passes are timed with a second batch, between two short requests. The first of these keeps the engine busy
until all requests have arrived. The other one has a prompt of one token, which is never split over passes, and ends
with its second token: after that, passes only decode. A response of the batch that started in the same pass had its
first token there too, so its length says how many passes followed. Where none did, the batch's last prompt was split,
and its end was in that pass, so its response is taken. (If that prompt filled a pass to the last token instead, one
pass too many is counted.) Responses that end by themselves make the batch smaller on the way; a point states the means.

A batch that the KV cache does not hold is not timed: some of it would wait, or be preempted, and the point would be of
another size.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rollpacker.data.shapes import transformer_of
from rollpacker.metrics.profiles import Point
from rollpacker.profiling.probes.bench import Bench, Burst
from rollpacker.profiling.subject import now_s
from rollpacker.profiling.workload import WINDOW_PASSES
from rollpacker.protocols.rollout import Response

LARGE_BATCH = 32
"""Sequences beyond which a pass is long and fewer are timed."""

LARGE_BATCH_PASSES = 8
"""Decoding passes that a probe of a large batch times."""

_KV_BLOCK_TOKENS = 16
"""vLLM's: the last block of a sequence may be nearly empty."""

_EXPECTED_SHARE = 0.8
"""Of the KV cache that a round of the data is expected to take at most: its lengths are not yet known."""


async def probe_decoding(bench: Bench, size: int, context: int) -> None:
    """Time prefill and decoding of `size` sequences with prompts of `context` tokens, on all engines at once."""
    num_kv_tokens = (await bench.subject.stats()).kv_tokens_capacity
    if size * _most_kv_tokens(bench, context + 1) > num_kv_tokens:
        return
    prefilled = await bench.burst_on_all((context, [1] * size))
    for burst in prefilled:
        began_s = min(response.queue_time_s for response in burst.responses)
        seconds = max(map(_end_s, burst.responses)) - began_s
        bench.points.note(("prefill", size, context), size, size * context, seconds)
    if size + 2 > bench.subject.config.engine.max_num_seqs:
        return  # no room for the short requests
    window = 2 + (LARGE_BATCH_PASSES if size > LARGE_BATCH else WINDOW_PASSES)
    # those that are prefilled first decode until the last one does
    num_ahead = max(len({response.queue_time_s for response in burst.responses}) for burst in prefilled) - 1
    longer = min(window + num_ahead, bench.workload.longest - context)
    limits = [*[longer] * (size - 1), window]
    if size * _most_kv_tokens(bench, context + longer) + _most_kv_tokens(bench, 1 + 2) > num_kv_tokens:
        return
    for burst in await bench.burst_on_all((1, [1]), (context, limits), (1, [2])):
        _note_passes(bench, size, context, burst, window)


def _most_kv_tokens(bench: Bench, length: float) -> float:
    """What a sequence of this length may take of a KV cache."""
    return min(length + _KV_BLOCK_TOKENS, bench.workload.longest)


def _peak_kv_tokens(bench: Bench, lengths: Sequence[float]) -> float:
    """The most that sequences of these lengths may take of a KV cache at a time, when they all start at once."""
    longest_first = sorted(lengths, reverse=True)
    return max(count * _most_kv_tokens(bench, length) for count, length in enumerate(longest_first, start=1))


async def num_that_fit(bench: Bench, lengths: Sequence[int]) -> int:
    """Return how many requests of the data an engine has room for at once, by the lengths of some of its sequences."""
    num_kv_tokens = (await bench.subject.stats()).kv_tokens_capacity
    expected = int(_EXPECTED_SHARE * num_kv_tokens * len(lengths) / _peak_kv_tokens(bench, lengths))
    at_least = max(num_kv_tokens // bench.workload.longest, 1)
    return min(max(expected, at_least), bench.subject.config.engine.max_num_seqs)


async def note_endings(bench: Bench, responses: Sequence[Response], num_prompt_tokens: float) -> None:
    """Note the passes of a batch that shrinks, between the moments at which half of the remaining ones have ended.

    The length of a response gives the pass in which it ended, and its time the moment: of those that started together,
    as most did, once all others had started too.
    """
    lengths = [num_prompt_tokens + response.num_tokens for response in responses]
    if _peak_kv_tokens(bench, lengths) > (await bench.subject.stats()).kv_tokens_capacity:
        return  # some may have had to wait
    starts = Counter(response.queue_time_s for response in responses)
    [(start_s, _)] = starts.most_common(1)
    together = sorted(
        (each for each in responses if each.queue_time_s == start_s and _end_s(each) >= max(starts)),
        key=lambda response: response.num_tokens,
    )
    for level in itertools.count():
        rest = [response for response in together if response.num_tokens > together[0].num_tokens]
        if not rest:
            return
        end = rest[(len(rest) - 1) // 2]
        passes = _passes_between(together[0], end, responses, num_prompt_tokens)
        bench.points.note(
            ("ending", level), passes.num_alive, passes.num_cached, passes.seconds, num_ended=passes.num_ended
        )
        together = [end, *(response for response in rest if response.num_tokens > end.num_tokens)]


async def probe_calls(bench: Bench, num_requests: int) -> None:
    """Time a call, requests on their way to an engine, and responses on their way back."""
    subject, workload = bench.subject, bench.workload
    engine = next(iter(subject.engines.values()))
    await asyncio.sleep(bench.collect_interval_s)  # the last answer is long past, so the next one need not wait
    began = now_s()
    await subject.within(engine.stats())
    call_s = now_s() - began
    bench.points.note(("call",), 0, 0, call_s)
    typical = workload.contexts()[0]
    num_requests = min(num_requests, subject.config.engine.max_num_seqs)
    requests = workload.requests(typical, [1] * num_requests, subject.config.rollout.temperature)
    burst = await bench.burst(engine, requests)
    there_s = burst.asked_s - call_s / 2
    back_s = burst.elapsed_s - _in_engine_s(burst.responses) - there_s
    bench.points.note(("request", num_requests), num_requests, num_requests * typical, burst.asked_s)
    bench.points.note(("response", num_requests), num_requests, num_requests, back_s)


async def probe_rollout_start(bench: Bench) -> None:
    """Time the start of a round whose engines have slept: the wake, and by each engine's own clock the first token.

    The second request's token is subtracted, so that what only the first one pays for is left: memory that is taken
    when it is needed, caches that new weights emptied, kernels that are loaded once more.
    """
    subject = bench.subject
    engines = list(subject.engines.values())
    await subject.within(asyncio.gather(*(engine.sleep() for engine in engines)))
    began = now_s()
    await subject.within(asyncio.gather(*(engine.wake() for engine in engines)))
    bench.points.note(("wake",), 0, 0, now_s() - began)
    await subject.publish()
    context = bench.workload.contexts()[0]
    first, again = [await bench.burst_on_all((context, [1])) for _ in range(2)]
    for one, other in zip(first, again, strict=True):
        bench.points.note(("rollout_start",), 0, 0, _in_engine_s(one.responses) - _in_engine_s(other.responses))


def _in_engine_s(responses: Sequence[Response]) -> float:
    return max(map(_end_s, responses))


async def kv_cache(bench: Bench) -> Point:
    """Return the KV capacity of the engines in use."""
    stats, degree = await bench.subject.stats(), bench.subject.degree
    return Point(
        measurement="kv_cache",
        tensor_parallel=degree,
        num_items=0,
        num_tokens=stats.kv_tokens_capacity,
        seconds=0,
        seconds_low=0,
        seconds_high=0,
        num_repeats=1,
        num_bytes=transformer_of(bench.subject.config.model).engine_kv_bytes_per_token(degree),
    )


def _note_passes(bench: Bench, size: int, context: int, burst: Burst, window: int) -> None:
    """Note the passes between the second token of the last request and the last one of a response in the window."""
    _, *responses, short = burst.responses
    together = (response for response in responses if response.queue_time_s == short.queue_time_s)
    known = [response for response in together if response.num_tokens <= window] or responses[-1:]
    longest = max(known, key=lambda response: response.num_tokens)
    if short.num_tokens < longest.num_tokens and _end_s(short) < _end_s(longest):
        passes = _passes_between(short, longest, responses, context)
        bench.points.note(("decode", size, context), passes.num_alive, passes.num_cached, passes.seconds)


class _Passes(NamedTuple):
    """Means over some passes."""

    seconds: float
    num_alive: float
    """Sequences."""
    num_cached: float
    """Tokens of all of them."""
    num_ended: float
    """Sequences that a pass had fewer than the one before; those of the last pass are not counted."""


def _passes_between(begin: Response, end: Response, responses: Sequence[Response], num_prompt_tokens: float) -> _Passes:
    """Return the passes between the ends of two responses that had their first tokens in one pass.

    A response that started with them says by its length how many passes it was in, any other one by its time.
    """
    num_passes = end.num_tokens - begin.num_tokens
    seconds = (_end_s(end) - _end_s(begin)) / num_passes
    lengths = np.array([response.num_tokens for response in responses])
    ends_s = np.array([_end_s(response) for response in responses])
    starts_s = np.array([response.queue_time_s for response in responses])
    num_left = np.where(
        starts_s == end.queue_time_s, lengths - begin.num_tokens, np.rint((ends_s - _end_s(begin)) / seconds)
    )
    num_own = np.clip(num_left, 0, num_passes)
    cached = num_own * (num_prompt_tokens + lengths - num_left + (num_own - 1) / 2)
    return _Passes(
        seconds=seconds,
        num_alive=float(num_own.sum()) / num_passes,
        num_cached=float(cached.sum()) / num_passes,
        num_ended=int(((num_left >= 0) & (num_left < num_passes)).sum()) / num_passes,
    )


def _end_s(response: Response) -> float:
    """When the last token was there, counted from the call."""
    return response.queue_time_s + response.generation_time_s
