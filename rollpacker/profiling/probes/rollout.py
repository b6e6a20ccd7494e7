"""A round of the data, rolled out to its end, so that lengths are those of the policy."""

from __future__ import annotations

import asyncio

import numpy as np

from rollpacker.profiling.probes.bench import Bench
from rollpacker.profiling.probes.engine import note_endings
from rollpacker.profiling.probes.reward import collect_verdicts
from rollpacker.protocols.rollout import RolloutGroup


async def roll_out_data(bench: Bench) -> list[RolloutGroup]:
    """Roll out a round, note how its responses end, and return a batch of it without rewards."""
    subject, rollout = bench.subject, bench.subject.config.rollout
    by_prompt = bench.workload.round_of_data()
    requests = [request for of_prompt in by_prompt for request in of_prompt]
    engines = list(subject.engines.values())
    scored_with, scoring = None, None
    if subject.config.system.reward != "batch":  # else nothing is scored while engines work
        scored_with = subject.workers.prompts
        scoring = asyncio.create_task(collect_verdicts(bench, len(requests)))
    try:
        bursts = await asyncio.gather(
            *(bench.burst(engine, requests[index :: len(engines)], scored_with) for index, engine in enumerate(engines))
        )
        if scoring:
            await subject.within(scoring)
    finally:
        if scoring:
            scoring.cancel()
    num_prompt_tokens = float(np.mean([len(of_prompt[0].prompt_token_ids) for of_prompt in by_prompt]))
    for burst in bursts:
        await note_endings(bench, burst.responses, num_prompt_tokens)
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
