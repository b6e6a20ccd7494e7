"""Rows of an engine: how fast it decodes, whether it frees its memory, and its turns with a trainer on one GPU."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median

from rollpacker.config.schema import RunConfig
from rollpacker.core.commands import DraftRule
from rollpacker.data.shapes import transformer_of
from rollpacker.gpu_check.checking import in_use
from rollpacker.gpu_check.inputs import (
    Bench,
    config_of,
    engine_section,
    groups_of,
    make_requests,
    relabelled,
    require_room,
)
from rollpacker.gpu_check.limits import leave_gpu, memory_bandwidth
from rollpacker.gpu_check.outcomes import NotPossible, require
from rollpacker.gpu_check.weights import options_of, require_alike
from rollpacker.gpu_check.workers import Worker, engine_on, trainer_on

WINDOW = 64
"""Tokens of each response of which the passes are timed."""

PROMPT_TOKENS = 32
"""Few, so that all prompts are computed in one pass."""

NUM_ROUNDS = 3
"""Sleeps whose start is timed."""

FREED_SHARE = 0.8
"""Of what must be free after a sleep; the rest is allocators' and contexts'."""


async def decode(bench: Bench, *, engine: str) -> Mapping[str, float]:
    """Time decoding passes at batches of 1 and 64, against one read of weights and cache at the GPU's bandwidth."""
    config = config_of(bench.large(), bench.folder, engine=engine_section(engine, memory_share=0.7))
    model = transformer_of(config.model)
    figures: dict[str, float] = {}
    bandwidth = memory_bandwidth()
    leave_gpu()
    figures["copy_gb_per_s"] = bandwidth / 1e9
    async with engine_on(config, [0]) as worker:
        num_bytes = await worker.call("loader.load")
        await _seconds_per_pass(worker, config, 64, seed=1)  # kernels are chosen and compiled
        for batch in (1, 64):
            seconds, num_alive, context = await _seconds_per_pass(worker, config, batch, seed=batch + 1)
            read_bytes = num_bytes + num_alive * context * model.kv_bytes_per_token
            figures[f"tokens_per_s_at_{batch}"] = num_alive / seconds
            figures[f"share_of_bandwidth_at_{batch}"] = read_bytes / bandwidth / seconds
    return figures


async def _seconds_per_pass(worker: Worker, config: RunConfig, batch: int, seed: int) -> tuple[float, float, float]:
    """Seconds of a pass, its sequences and tokens of context, by the engine's own clock; means over a window.

    One more response ends after the first pass, before which the prompts were computed.
    """
    requests = make_requests(config, [WINDOW + 2] * batch + [2], num_prompt_tokens=PROMPT_TOKENS, seed=seed)
    *responses, first = sorted(await worker.call("loader.respond", requests), key=lambda each: -each.num_tokens)
    longest = responses[0].num_tokens
    require(longest > WINDOW // 2, "the responses ended by themselves, before their passes could be timed")
    seconds = max(response.generation_time_s for response in responses) - first.generation_time_s
    num_alive = sum(response.num_tokens for response in responses) / longest
    return seconds / (longest - first.num_tokens), num_alive, PROMPT_TOKENS + longest / 2


async def round_start(bench: Bench, *, engine: str) -> Mapping[str, float]:
    """Time what stands before the first token of a round: wake, weights, and what the first request waits for.

    Medians over rounds; the first token's time is that beyond the same requests' once more.
    """
    config = config_of(bench.large(), bench.folder, engine=engine_section(engine, memory_share=0.7))
    seconds: dict[str, list[float]] = {"sleep": [], "wake": [], "load": [], "first": [], "again": []}

    async def timed(what: str, call: str, *arguments: object) -> None:
        began = time.perf_counter()
        await worker.call(call, *arguments)
        seconds[what].append(time.perf_counter() - began)

    async with engine_on(config, [0]) as worker:
        await worker.call("loader.load")
        requests = make_requests(config, [1] * 64)
        await worker.call("loader.respond", requests)  # kernels are chosen and compiled
        for number in range(1, NUM_ROUNDS + 1):
            await timed("sleep", "engine.sleep")
            await timed("wake", "engine.wake")
            await timed("load", "loader.load")
            for what, seed in (("first", 2 * number), ("again", 2 * number + 1)):
                await timed(what, "loader.respond", make_requests(config, [1] * 64, seed=seed))
    medians = {f"{what}_s": median(each) for what, each in seconds.items()}
    return {**medians, "start_s": medians["wake_s"] + max(medians["first_s"] - medians["again_s"], 0.0)}


async def turns(bench: Bench, *, engine: str, trainer: str) -> Mapping[str, float]:
    """Let engine and trainer take turns on one GPU for two steps: each frees its memory, weights come over the host."""
    config = config_of(
        bench.large(),
        bench.folder,
        engine=engine_section(engine),
        trainer={"name": trainer, "logits_chunk_tokens": 1024, "recompute_activations": True},
    )
    require_room(bench, config)
    num_parameters = transformer_of(config.model).num_parameters
    figures: dict[str, float] = {}
    async with engine_on(config, [0]) as worker:
        num_bytes = await worker.call("loader.load")
        requests = make_requests(config, [16, 32, 64, 128] * 2, group_size=4)
        groups = groups_of(requests, await worker.call("loader.respond", requests))
        await _sleep(bench, worker, "engine", num_bytes, figures)
        async with trainer_on(config, [0]) as ranks:
            first = await ranks.step(groups)
            require_alike(first, config.model.dtype)
            # master weights, two moments and gradients, each 4 bytes; gradients may be gone
            await ranks.everywhere("offers.prepare", options_of("handles").bucket_bytes)
            await _sleep(bench, ranks.ranks[0], "trainer", 12 * num_parameters, figures)
            await worker.call("engine.wake")
            await ranks.send_to(worker, options_of("handles"))
            again = make_requests(config, [16, 32, 64, 128] * 2, group_size=4, seed=1)
            groups = groups_of(again, await worker.call("loader.respond", again))
            await _sleep(bench, worker, "engine", num_bytes, figures)
            await ranks.everywhere("trainer.wake")
            second = await ranks.step(relabelled(groups, 1))
            require_alike(second, config.model.dtype)
    figures["mismatch_mean_nats"] = second.logprob_mismatch_mean or 0.0
    return figures


async def _sleep(bench: Bench, worker: Worker, role: str, least: int, figures: dict[str, float]) -> None:
    """Send a worker to sleep; raises `Refuted` unless the GPU then has this many bytes more."""
    before = await worker.call("gpu.free_bytes")
    await worker.call("engine.sleep" if role == "engine" else "trainer.sleep")
    freed = await worker.call("gpu.free_bytes") - before
    figures[f"{role}_freed_gb"] = freed / 1e9
    if bench.has_gpus:
        require(
            freed >= FREED_SHARE * least,
            f"the {role}'s sleep freed {freed / 1e9:.2f} GB of at least {least / 1e9:.2f} GB",
        )


async def drafts(bench: Bench, *, method: str) -> Mapping[str, float]:
    """Let vLLM verify draft tokens: its engine refuses the first weights if what it then draws is not the policy's.

    Figures are of siblings at batches of 1 and 8: tokens of a pass and sequence, and tokens per second.
    """
    section = engine_section("vllm", memory_share=0.7)
    section["vllm"] |= {"drafter": method}
    system = {"name": "gpu-check", "batching": "plain", "speculative_decoding": True}
    config = config_of(bench.large(), bench.folder, engine=section, system=system)
    figures: dict[str, float] = {}
    async with engine_on(config, [0]) as worker:
        await worker.call("loader.load")
        for batch in (1, 8):
            await worker.call("engine.use_draft_lengths", [DraftRule(batch, config.engine.vllm.draft_length, 0, 0)])
            requests = make_requests(config, [4 * WINDOW] * batch, group_size=batch, seed=batch)
            await worker.call("loader.respond", requests)
            stats = await worker.call("engine.stats")
            passes = [each for each in stats.draft_passes if each.max_sequences == batch]
            require(bool(passes), "vLLM reported no passes")
            num_tokens = sum(each.num_sequence_passes + each.num_accepted for each in passes)
            figures[f"tokens_per_pass_at_{batch}"] = num_tokens / sum(each.num_sequence_passes for each in passes)
            figures[f"tokens_per_s_at_{batch}"] = num_tokens / sum(each.time_s for each in passes)
    return figures


async def tensor_parallel(bench: Bench) -> Mapping[str, float]:
    """Let an engine of vLLM on all GPUs, or as many as the model's heads allow, answer as the trainer does."""
    model = bench.large()
    heads = transformer_of(config_of(model, bench.folder).model).shape
    degree = max(degree for degree in (1, 2, 4, 8) if degree <= bench.num_gpus and heads.num_kv_heads % degree == 0)
    if degree == 1:
        raise NotPossible(f"no degree of 2 to {bench.num_gpus} divides the model's {heads.num_kv_heads} key heads")
    if bench.has_gpus and (why := in_use(degree)):
        raise NotPossible(why)
    section = engine_section("vllm") | {"tensor_parallel": degree}
    config = config_of(model, bench.folder, engine=section, trainer={"logits_chunk_tokens": 1024})
    require_room(bench, config)
    async with engine_on(config, range(degree)) as worker, trainer_on(config, [0]) as ranks:
        await ranks.send_to(worker, options_of("handles"))
        requests = make_requests(config, [16, 32, 64, 128] * 2, group_size=4)
        update = await ranks.step(groups_of(requests, await worker.call("loader.respond", requests)))
    require_alike(update, config.model.dtype)
    return {"degree": degree, "mismatch_mean_nats": update.logprob_mismatch_mean or 0.0}
