"""Rounds of the data, rolled out to their ends, so that lengths are those of the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from rollpacker.profiling.probes.bench import Bench, Burst
from rollpacker.profiling.probes.engine import note_endings
from rollpacker.profiling.probes.reward import collect_verdicts
from rollpacker.protocols.rollout import GenerationRequest, RolloutGroup


async def roll_out_data(bench: Bench) -> list[RolloutGroup]:
    """Roll out a round and return a batch of it without rewards."""
    subject, rollout = bench.subject, bench.subject.config.rollout
    by_prompt = bench.workload.round_of_data()
    bursts = await _roll_out(bench, _by_engine(bench, by_prompt))
    by_request = {response.request: response for burst in bursts for response in burst.responses}
    return [
        RolloutGroup(
            prompt=of_prompt[0].request.prompt,
            domain=subject.workers.prompts[of_prompt[0].request.prompt.key].prompt.domain,
            prompt_token_ids=of_prompt[0].prompt_token_ids,
            responses=tuple(by_request[request.request] for request in of_prompt[: rollout.num_responses]),
            rewards=(0.0,) * rollout.num_responses,
        )
        for of_prompt in by_prompt[: rollout.num_prompts]
    ]


async def probe_endings(bench: Bench, most_per_engine: int) -> None:
    """Roll out a round, of each engine's share at most so many requests, and note how its responses end."""
    by_prompt = bench.workload.round_of_data()
    num_prompt_tokens = float(np.mean([len(of_prompt[0].prompt_token_ids) for of_prompt in by_prompt]))
    shares = [share[:most_per_engine] for share in _by_engine(bench, by_prompt)]
    for burst in await _roll_out(bench, shares):
        await note_endings(bench, burst.responses, num_prompt_tokens)


def _by_engine(bench: Bench, by_prompt: Sequence[Sequence[GenerationRequest]]) -> list[list[GenerationRequest]]:
    requests = [request for of_prompt in by_prompt for request in of_prompt]
    num_engines = len(bench.subject.engines)
    return [requests[index::num_engines] for index in range(num_engines)]


async def _roll_out(bench: Bench, shares: Sequence[Sequence[GenerationRequest]]) -> list[Burst]:
    """Send each engine its share, and score responses on arrival where a run does."""
    subject = bench.subject
    scored_with, scoring = None, None
    if subject.config.system.reward != "batch":  # else nothing is scored while engines work
        scored_with = subject.workers.prompts
        scoring = asyncio.create_task(collect_verdicts(bench, sum(map(len, shares))))
    try:
        bursts = await asyncio.gather(
            *(
                bench.burst(engine, share, scored_with)
                for engine, share in zip(subject.engines.values(), shares, strict=True)
            )
        )
        if scoring:
            await subject.within(scoring)
    finally:
        if scoring:
            scoring.cancel()
    return bursts
