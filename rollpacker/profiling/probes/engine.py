"""Probes of an engine: prefill, passes at a batch size and context, a round's start, calls to it, KV capacity.

How a pass is timed: n requests with equally long prompts start together, and two more whose limits are 1 and 2 tokens.
The first of these ends with the prefill, the second with the first decoding pass; the time of a longer response beyond
the second one, by the engine's own clock, is that of its further passes. Responses that end by themselves make the
batch smaller on the way; a point states the means.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence

import numpy as np

from rollpacker.metrics.profiles import Point
from rollpacker.profiling.probes.bench import Bench
from rollpacker.profiling.subject import now_s
from rollpacker.profiling.workload import WINDOW_PASSES
from rollpacker.protocols.rollout import Response

LARGE_BATCH = 32
"""Sequences beyond which a pass is long and fewer are timed."""

LARGE_BATCH_PASSES = 8
"""Decoding passes that a probe of a large batch times."""


async def probe_decoding(bench: Bench, size: int, context: int) -> None:
    """Time prefill and decoding of `size` sequences with prompts of `context` tokens, on all engines at once."""
    window = LARGE_BATCH_PASSES if size > LARGE_BATCH else WINDOW_PASSES
    limits = [1, 2, *[window + 2] * size][: bench.subject.config.engine.max_num_seqs]
    for burst in await bench.burst_on_all(context, limits):
        _note_passes(bench, size, context, burst.responses)


def note_endings(bench: Bench, responses: Sequence[Response], num_prompt_tokens: float) -> None:
    """Note the passes of a batch that shrinks, between the moments at which half of the remaining ones have ended.

    All of them started together, so the length of a response gives the pass in which it ended, and its time the moment.
    """
    if len(responses) > bench.subject.config.engine.max_num_seqs:
        return  # some had to wait
    lengths = np.sort([response.num_tokens for response in responses])
    ends = {response.num_tokens: response.generation_time_s for response in responses}
    begin = int(lengths[0])
    for level in itertools.count():
        rest = lengths[lengths > begin]
        if len(rest) == 0:
            return
        end = int(rest[(len(rest) - 1) // 2])
        alive, cached = _alive_and_cached(lengths, begin + 1, end, num_prompt_tokens + begin)
        num_ended = int(((lengths >= begin) & (lengths < end)).sum()) / (end - begin)
        seconds = (ends[end] - ends[begin]) / (end - begin)
        bench.points.note(("ending", level), alive, cached, seconds, num_ended=num_ended)
        begin = end


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
    first, again = [await bench.burst_on_all(context, [1]) for _ in range(2)]
    for one, other in zip(first, again, strict=True):
        bench.points.note(("rollout_start",), 0, 0, _in_engine_s(one.responses) - _in_engine_s(other.responses))


def _in_engine_s(responses: Sequence[Response]) -> float:
    return max(response.queue_time_s + response.generation_time_s for response in responses)


async def kv_cache(bench: Bench, kv_bytes_per_token: int) -> Point:
    """Return the KV capacity of the engines in use."""
    stats = await bench.subject.within(next(iter(bench.subject.engines.values())).stats())
    return Point(
        measurement="kv_cache",
        tensor_parallel=bench.subject.degree,
        num_items=0,
        num_tokens=stats.kv_tokens_capacity,
        seconds=0,
        seconds_low=0,
        seconds_high=0,
        num_repeats=1,
        num_bytes=kv_bytes_per_token,
    )


def _note_passes(bench: Bench, size: int, context: int, responses: Sequence[Response]) -> None:
    """Split the engine's times of a burst into its prefill and its passes."""
    ends = {response.num_tokens: response.generation_time_s for response in responses}
    last = max(ends)
    if 1 in ends:
        bench.points.note(("prefill", size, context), len(responses), len(responses) * context, ends[1])
    if 2 in ends and last > 2:  # noqa: PLR2004  (the limit of the second reference request)
        lengths = np.array([response.num_tokens for response in responses])
        alive, cached = _alive_and_cached(lengths, 3, last, context + 2)
        bench.points.note(("decode", size, context), alive, cached, (ends[last] - ends[2]) / (last - 2))


def _alive_and_cached(lengths: np.ndarray, first: int, last: int, num_cached: float) -> tuple[float, float]:
    """Return the mean sequences and mean cached tokens of the passes that made the tokens `first` to `last`.

    Before pass `first` each sequence had `num_cached` tokens in the cache.
    """
    alive = [int((lengths >= num_tokens).sum()) for num_tokens in range(first, last + 1)]
    cached = [count * (num_cached + ahead) for ahead, count in enumerate(alive)]
    return float(np.mean(alive)), float(np.mean(cached))
