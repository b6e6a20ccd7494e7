"""Rows of a trainer: does it compute as the plain one does, what its chunks save, its attention, how fast it is."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from rollpacker.config.schema import RunConfig
from rollpacker.core.ids import EngineId, VersionSpan
from rollpacker.data.shapes import Transformer, transformer_of
from rollpacker.gpu_check.inputs import Bench, config_of, groups_of, make_requests, relabelled, require_room
from rollpacker.gpu_check.limits import best_seconds, leave_gpu, matrix_flops
from rollpacker.gpu_check.outcomes import NotPossible, require
from rollpacker.gpu_check.workers import TrainerRanks, engine_on, trainer_on
from rollpacker.protocols.rollout import FinishReason, Response, RolloutGroup
from rollpacker.protocols.trainer import UpdateMetrics

CLOSE = {"float32": 2e-3, "bfloat16": 5e-2}
"""Relative difference of loss, gradient norm and entropy that rounding explains."""

COMPARED = ("loss", "grad_norm", "entropy")

AMPERE = 8
"""The first compute capability that the flash kernel takes."""


async def against_torch(bench: Bench, *, trainer: str) -> Mapping[str, float]:
    """Take two steps with a sharded trainer and with the plain one, on the same batch, in both dtypes."""
    figures: dict[str, float] = {}
    num_ranks = min(2, bench.num_gpus)
    sharded = {"name": trainer, ("tensor_parallel" if trainer == "megatron" else "data_parallel"): num_ranks}
    for dtype in ("float32", "bfloat16"):
        batch = await _batch(bench, dtype)
        plain = await _two_steps(bench, dtype, {"name": "torch"}, batch)
        other = await _two_steps(bench, dtype, sharded, batch)
        furthest = max(
            _difference(getattr(one, name), getattr(two, name))
            for one, two in zip(plain, other, strict=True)
            for name in COMPARED
        )
        figures[f"{dtype}_furthest"] = furthest
        figures[f"{dtype}_mismatch_mean_nats"] = other[0].logprob_mismatch_mean or 0.0
        require(
            furthest <= CLOSE[dtype], f"in {dtype} trainer={trainer} differs from trainer=torch: {plain} and {other}"
        )
    return {"ranks": num_ranks, **figures}


async def _batch(bench: Bench, dtype: str) -> list[RolloutGroup]:
    config = config_of(bench.tiny(), bench.folder, dtype=dtype)
    requests = make_requests(config, [3, 17, 40, 64] * 4, group_size=4)
    async with engine_on(config, [0]) as worker:
        await worker.call("loader.load")
        return groups_of(requests, await worker.call("loader.respond", requests))


async def _two_steps(
    bench: Bench, dtype: str, trainer: Mapping[str, Any], batch: list[RolloutGroup]
) -> list[UpdateMetrics]:
    config = config_of(
        bench.tiny(),
        bench.folder,
        dtype=dtype,
        trainer={"learning_rate": 1e-4, "max_tokens_per_microbatch": 512, **trainer},
    )
    async with trainer_on(config, range(config.trainer.num_ranks)) as ranks:
        return [await ranks.step(relabelled(batch, version)) for version in (0, 1)]


def _difference(one: float, other: float) -> float:
    """Relative; of two that are 0 to rounding, as the loss of a first step is, absolute."""
    return abs(one - other) / max(abs(one), abs(other), 0.05)


async def chunks(bench: Bench) -> Mapping[str, float]:
    """Take a step with the logits of all tokens at once and in chunks: the same, with less memory."""
    require_room(bench, config_of(bench.large(), bench.folder))
    batch = _made_up(config_of(bench.large(), bench.folder), num_responses=16, num_tokens=512 if bench.has_gpus else 64)
    updates, peaks = [], []
    for chunk_tokens in (None, 256):
        section = {"max_tokens_per_microbatch": 8192, "logits_chunk_tokens": chunk_tokens}
        section |= {"recompute_activations": True}
        config = config_of(bench.large(), bench.folder, trainer=section)
        async with trainer_on(config, [0]) as ranks:
            await ranks.ranks[0].call("gpu.peak_bytes")
            updates.append(await ranks.step(batch))
            peaks.append(await ranks.ranks[0].call("gpu.peak_bytes"))
    for name in COMPARED:
        one, two = (getattr(update, name) for update in updates)
        require(_difference(one, two) <= CLOSE["bfloat16"], f"{name} is {one} at once and {two} in chunks")
    if bench.has_gpus:
        require(peaks[1] < peaks[0], f"chunks took {peaks[1] / 1e9:.2f} GB, all at once {peaks[0] / 1e9:.2f} GB")
    return {"peak_gb_at_once": peaks[0] / 1e9, "peak_gb_in_chunks": peaks[1] / 1e9}


async def speed(bench: Bench, *, trainer: str) -> Mapping[str, float]:
    """Time the passes of a batch, against what a large product of bfloat16 matrices reaches on the same GPU."""
    num_responses, num_tokens = (128, 512) if bench.has_gpus else (4, 16)
    section = {
        "name": trainer,
        "max_tokens_per_microbatch": 8192,
        "logits_chunk_tokens": 1024,
        "recompute_activations": bench.model is not None,
    }
    config = config_of(bench.large(), bench.folder, trainer=section)
    require_room(bench, config)
    model = transformer_of(config.model)
    peak = matrix_flops()
    leave_gpu()
    async with trainer_on(config, [0]) as ranks:
        fastest = await _passes_s(ranks, config, num_responses, 2 * num_tokens)
    num_inputs = 2 * num_tokens * num_responses
    forward = _forward_flops(model, num_responses, num_tokens)
    return {
        "tokens_per_s": num_inputs / fastest,
        "matrix_tflops": peak / 1e12,
        "mfu": 3 * forward / fastest / peak,  # the backward pass is twice the forward one; what is recomputed is none
    }


def _forward_flops(model: Transformer, num_responses: int, num_tokens: int) -> float:
    """Of a batch of `_made_up`: the output layer sees only the positions that predict tokens of responses."""
    every_token = model.forward_flops(2 * num_tokens * num_responses)
    unscored = 2.0 * model.shape.vocab_size * model.shape.hidden_size * num_tokens * num_responses
    return every_token - unscored + num_responses * model.attention_flops(0, 2 * num_tokens)


async def sequence_cost(bench: Bench, *, trainer: str) -> Mapping[str, float]:
    """Time passes over the same tokens in few long and in many short sequences: what does a sequence take by itself?

    Packed as in a run, and each sequence in a micro-batch of its own; where there are two GPUs, Megatron-core also with
    context parallelism of 2, all split or the short ones whole. On a CPU, where figures say nothing, packed and split
    by length only. The longer attention of the long ones counts against them, so that the figures per sequence are
    lower bounds.
    """
    # 32 and 256 sequences: alone in their passes more would take minutes
    (num_few, length), ratio = ((32, 1600), 8) if bench.has_gpus else ((4, 64), 8)
    section = {"name": trainer, "max_tokens_per_microbatch": 8192, "recompute_activations": bench.model is not None}
    section["logits_chunk_tokens"] = 1024
    packings: dict[str, dict[str, Any]] = {"packed": {}, "alone": {"max_tokens_per_microbatch": 1}}
    if trainer == "megatron" and bench.num_gpus > 1:
        split = {"context_parallel": 2}
        packings |= {"cp2_packed": split, "cp2_alone": split | packings["alone"]}
        packings["cp2_by_length"] = split | {"context_parallel_above": length // 2}
    if not bench.has_gpus:  # a trainer for each packing takes long to start
        packings = {name: packings[name] for name in ("packed", "cp2_by_length") if name in packings}
    figures: dict[str, float] = {}
    for name, changes in packings.items():
        config = config_of(bench.large(), bench.folder, trainer=section | changes)
        require_room(bench, config)
        shapes = ((num_few, length), (num_few * ratio, length // ratio))
        async with trainer_on(config, range(config.trainer.num_ranks)) as ranks:
            few_s, many_s = [await _passes_s(ranks, config, *shape) for shape in shapes]
        sequence_s = (many_s - few_s) / (num_few * (ratio - 1))
        figures[f"{name}_many_of_few"] = many_s / few_s
        figures[f"{name}_ms_per_sequence"] = 1e3 * sequence_s
        figures[f"{name}_us_per_token"] = 1e6 * (few_s - num_few * sequence_s) / (num_few * length)
    return figures


async def _passes_s(ranks: TrainerRanks, config: RunConfig, num_sequences: int, length: int) -> float:
    """Of the fastest of three steps on sequences of so many tokens, of which half are the prompt's."""
    batch = _made_up(config, num_responses=num_sequences, num_tokens=length // 2)
    seconds = []
    for _ in range(3):
        await ranks.step(relabelled(batch, ranks.policy_version))
        seconds.append(ranks.passes_s)
    return min(seconds)


def _made_up(config: RunConfig, *, num_responses: int, num_tokens: int) -> list[RolloutGroup]:
    """A batch of random tokens, prompts as long as responses, whose log-probabilities are those of nobody."""
    requests = make_requests(config, [num_tokens] * num_responses, num_prompt_tokens=num_tokens, group_size=4)
    num_words = transformer_of(config.model).shape.vocab_size
    numbers = np.random.default_rng(0)
    responses = [
        Response(
            request=request.request,
            engine=EngineId("nobody"),
            finish_reason=FinishReason.LENGTH,
            token_ids=numbers.integers(1, num_words, num_tokens).astype(np.int32),
            logprobs=np.full(num_tokens, -math.log(num_words), dtype=np.float32),
            spans=(VersionSpan(policy_version=0, num_tokens=num_tokens),),
            queue_time_s=0.0,
            generation_time_s=0.0,
        )
        for request in requests
    ]
    return groups_of(requests, responses)


async def flash_attention(bench: Bench) -> Mapping[str, float]:
    """Hold the flash kernel over packed sequences against plain attention, values and gradients; and time both."""
    import torch

    from rollpacker.trainers.packed_attention import Segment, attend_in_one_kernel, attend_one_by_one

    if bench.has_gpus and torch.cuda.get_device_capability()[0] < AMPERE:
        raise NotPossible(f"{torch.cuda.get_device_name()} is older than Ampere, which the flash kernel needs")
    device = "cuda" if bench.has_gpus else "cpu"
    lengths = ((700, 700), (1, 1), (129, 400), (2048, 2048)) if bench.has_gpus else ((7, 7), (1, 1), (3, 9))
    segments = tuple(Segment(num_queries=queries, num_keys=keys) for queries, keys in lengths)
    begins = [
        torch.tensor([0, *counts], dtype=torch.int32, device=device).cumsum(0, dtype=torch.int32)
        for counts in zip(*lengths, strict=True)
    ]
    shapes = [(sum(queries for queries, _ in lengths), 8)] + [(sum(keys for _, keys in lengths), 2)] * 2
    generator = torch.Generator(device).manual_seed(0)
    inputs = [torch.randn(*shape, 64, generator=generator, device=device).bfloat16() for shape in shapes]

    def plain(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend_one_by_one(query, key, value, segments)

    def kernel(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend_in_one_kernel(query, key, value, segments, cu_queries=begins[0], cu_keys=begins[1])

    def with_gradients(attend: Any, dtype: torch.dtype) -> list[torch.Tensor]:
        given = [each.detach().to(dtype).requires_grad_() for each in inputs]
        output = attend(*given)
        loss = output.float().square().sum()
        return [output.detach().float(), *(torch.autograd.grad(loss, given))]

    exact = with_gradients(plain, torch.float32)
    fast = with_gradients(kernel if bench.has_gpus else plain, torch.bfloat16)
    errors = [float((one - other.float()).norm() / one.norm()) for one, other in zip(exact, fast, strict=True)]
    require(max(errors) <= CLOSE["bfloat16"], f"output and gradients differ by {errors}")
    if not bench.has_gpus:
        return {"furthest": max(errors)}
    plain_s, kernel_s = (
        best_seconds(functools.partial(with_gradients, attend, torch.bfloat16)) for attend in (plain, kernel)
    )
    return {"furthest": max(errors), "speedup": plain_s / kernel_s}
