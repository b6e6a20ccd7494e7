"""Probes of the reward: responses on their way to it and verdicts on their way back; programs and their sandboxes."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.ids import RequestId
from rollpacker.profiling.probes.bench import Bench, to_score
from rollpacker.profiling.subject import now_s
from rollpacker.protocols.rollout import RolloutGroup, Verdict
from rollpacker.rewards.sandbox.worker import pool_size


async def probe_reward(bench: Bench, batch: Sequence[RolloutGroup], num_responses: int) -> None:
    """Time responses on their way to the reward and their verdicts back, less the scoring itself."""
    subject = bench.subject
    async with _engines_as_while_scoring(bench):
        number = bench.workload.next_round()
        responses = [response for group in batch for response in group.responses][:num_responses]
        asked = [
            to_score(
                response, RequestId(number, response.request.prompt, response.request.sample), subject.workers.prompts
            )
            for response in responses
        ]
        await asyncio.sleep(bench.collect_interval_s)
        began = now_s()
        collecting = asyncio.create_task(collect_verdicts(bench, len(asked)))
        try:
            await subject.within(subject.workers.reward.score(asked))
            verdicts = await subject.within(collecting)
        finally:
            collecting.cancel()
        elapsed_s = now_s() - began - scoring_time_s(subject.config.reward, verdicts)
    num_tokens = sum(response.num_tokens for response in responses)
    bench.points.note(("reward", num_responses), len(asked), num_tokens, elapsed_s)


async def collect_verdicts(bench: Bench, num_verdicts: int) -> list[Verdict]:
    """Await verdicts."""
    verdicts: list[Verdict] = []
    while len(verdicts) < num_verdicts:
        new = await bench.subject.workers.reward.collect()
        verdicts += new
        for verdict in new:
            _note_program(bench, verdict)
    return verdicts


def scoring_time_s(section: RewardSection, verdicts: Sequence[Verdict]) -> float:
    """How long scoring took, what was scored side by side counted once; of several judges, that of the busiest."""
    checking_s, batches = 0.0, set()
    for verdict in verdicts:
        if verdict.scorer.startswith("judge-"):  # each response of a batch has the time of all of it
            batches.add((verdict.scorer, verdict.time_s))
        else:
            checking_s += verdict.time_s / (pool_size(section.sandbox) if verdict.case_runs else section.num_workers)
    judges = {scorer for scorer, _ in batches}
    judging_s = (math.fsum(batch_s for scorer, batch_s in batches if scorer == judge) for judge in judges)
    return checking_s + max(judging_s, default=0.0)


def _note_program(bench: Bench, verdict: Verdict) -> None:
    """Split the time of a program that no limit stopped into its sandbox's start and its test cases."""
    if verdict.case_runs and verdict.reason != "timeout":
        own_s = math.fsum(run.time_s for run in verdict.case_runs)
        bench.points.note(("sandbox_start",), 1, 0, verdict.time_s - own_s)
        bench.points.note(("program",), 1, 0, own_s)


@asynccontextmanager
async def _engines_as_while_scoring(bench: Bench) -> AsyncIterator[None]:
    """Let the engines decode a round's surplus requests, as in a run that scores during its rollouts."""
    subject, workload, config = bench.subject, bench.workload, bench.subject.config
    if config.system.reward == "batch":
        yield
        return
    rollout, context = config.rollout, workload.contexts()[0]
    num_left = max(workload.num_launched() - rollout.num_prompts * rollout.num_responses, 1)
    limits = [rollout.max_response_tokens] * min(num_left, config.engine.max_num_seqs)
    asked = {name: workload.requests(context, limits, workload.hot) for name in subject.engines}
    bursts = [asyncio.create_task(bench.burst(engine, asked[name])) for name, engine in subject.engines.items()]
    try:
        yield
        for name, engine in subject.engines.items():
            await subject.within(engine.abort([request.request for request in asked[name]]))
        await asyncio.gather(*bursts)
    finally:
        for burst in bursts:
            burst.cancel()
