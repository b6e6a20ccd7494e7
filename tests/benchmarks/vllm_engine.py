"""Tokens per second of vLLM's engine over batch and context, against what the memory's bandwidth allows.

    python tests/benchmarks/vllm_engine.py                       # a small model on this processor
    python tests/benchmarks/vllm_engine.py --model qwen2.5-7b --hardware h200 --batches 1 8 64 256 --contexts 1024 8192

Nobody has run it on a GPU yet.

The model has the shape of a file in conf/model and random weights, so no checkpoint is needed; they reach vLLM as a
trainer's would, and the time of that is printed, too. Each cell generates twice from the same prompts, a short and a
long response per request, and divides the difference in tokens by the difference in time: prompts, which are in the
prefix cache by then, and start cancel out. The bound is one pass over the weights and over the batch's keys and values
per token, at the bandwidth that conf/hardware gives; nothing else is counted, so nothing reaches it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import yaml

from rollpacker.config.roots import conf_dir
from rollpacker.config.sections.engine import EngineSection, VllmSection
from rollpacker.config.sections.model import ShapeSection
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.engines.vllm.start import start_vllm
from rollpacker.protocols.rollout import GenerationRequest
from rollpacker.protocols.tensors import checksum_of_tensors, num_bytes_of_tensors
from rollpacker.protocols.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rollpacker.engines.vllm.engine import VllmEngine

SMALL = ShapeSection(
    num_layers=4,
    hidden_size=256,
    num_heads=8,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=768,
    vocab_size=2048,
    has_tied_embeddings=True,
)
"""4 M parameters: a cell takes seconds on one core."""

SHORT_TOKENS, LONG_TOKENS = 16, 80
"""Of the two responses whose difference is measured."""

PATTERN_NUMBERS = 1 << 24
"""Random numbers that are repeated over the weights: drawing billions would take longer than the measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One measurement."""

    batch: int
    context_tokens: int
    tokens_per_second: float
    bound_tokens_per_second: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a file of conf/model with a shape; left out, a small one for a processor")
    parser.add_argument("--hardware", default="cpu", help="a file of conf/hardware, for the bandwidth")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--contexts", type=int, nargs="+", default=[128, 1024], help="prompt tokens")
    parser.add_argument("--memory-share", type=float, default=0.9)
    parser.add_argument("--kv-cache-mb", type=int)
    parser.add_argument("--out", type=Path, help="a Markdown file to append the table to")
    options = parser.parse_args()
    table = asyncio.run(measure(options))
    print(table)
    if options.out:
        with options.out.open("a", encoding="utf-8") as file:
            file.write(table + "\n")


async def measure(options: argparse.Namespace) -> str:
    dtype = getattr(torch, options.dtype)
    shape = SMALL if options.model is None else ShapeSection(**read("model", options.model)["shape"])
    bandwidth = read("hardware", options.hardware)["memory_gb_per_s"] * 1e9 * options.tensor_parallel
    section = EngineSection(
        name="vllm",
        max_num_seqs=max(options.batches),
        tensor_parallel=options.tensor_parallel,
        vllm=VllmSection(memory_share=options.memory_share, kv_cache_mb=options.kv_cache_mb),
    )
    with tempfile.TemporaryDirectory() as folder:
        longest = max(options.contexts) + LONG_TOKENS
        write_model(Path(folder), shape, longest)
        began = time.monotonic()
        engine = start_vllm(EngineId("engine-0"), Path(folder), section, longest, options.dtype)
        print(f"started in {time.monotonic() - began:.0f} s", flush=True)
        try:
            weights = random_weights(Path(folder), options.dtype)
            began = time.monotonic()
            await engine.load_weights(weights)
            sync_s = time.monotonic() - began
            cells = [
                await measure_cell(
                    engine,
                    shape,
                    batch=batch,
                    context=context,
                    kv_bytes_per_token=2 * shape.num_layers * shape.num_kv_heads * shape.head_dim * dtype.itemsize,
                    weight_bytes=weights.num_bytes,
                    bandwidth=bandwidth,
                )
                for context in options.contexts
                for batch in options.batches
            ]
        finally:
            await engine.close()
    return as_table(cells, weights.num_bytes, sync_s)


async def measure_cell(
    engine: VllmEngine,
    shape: ShapeSection,
    *,
    batch: int,
    context: int,
    kv_bytes_per_token: int,
    weight_bytes: int,
    bandwidth: float,
) -> Cell:
    await generate(engine, shape, batch, context, SHORT_TOKENS)  # fills the prefix cache
    short_s = await generate(engine, shape, batch, context, SHORT_TOKENS)
    long_s = await generate(engine, shape, batch, context, LONG_TOKENS)
    mean_context = context + (SHORT_TOKENS + LONG_TOKENS) / 2
    step_bytes = weight_bytes + batch * mean_context * kv_bytes_per_token
    cell = Cell(
        batch=batch,
        context_tokens=context,
        tokens_per_second=batch * (LONG_TOKENS - SHORT_TOKENS) / (long_s - short_s),
        bound_tokens_per_second=batch * bandwidth / step_bytes,
    )
    print(cell, flush=True)
    return cell


async def generate(engine: VllmEngine, shape: ShapeSection, batch: int, context: int, num_tokens: int) -> float:
    """Seconds for a batch of responses of one length."""
    numbers = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            request=RequestId(0, PromptId(0, str(index)), 0),
            prompt_token_ids=numbers.integers(0, shape.vocab_size, context).astype(np.int32),
            seed=index,
            max_response_tokens=num_tokens,
            temperature=1.0,
        )
        for index in range(batch)
    ]
    began = time.monotonic()
    await engine.generate(requests)
    num_done = 0
    while num_done < batch:
        num_done += len(await engine.collect())
    return time.monotonic() - began


def write_model(folder: Path, shape: ShapeSection, num_positions: int) -> None:
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_hidden_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
        "num_attention_heads": shape.num_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "intermediate_size": shape.intermediate_size,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": shape.has_tied_embeddings,
        "max_position_embeddings": num_positions,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "eos_token_id": shape.vocab_size,  # outside the vocabulary: responses end by their limit
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def random_weights(folder: Path, dtype: str) -> Weights:
    from rollpacker.engines.vllm.arguments import expected_tensors

    pattern = torch.randn(PATTERN_NUMBERS, generator=torch.Generator().manual_seed(0)).mul_(0.02)
    payload = {}
    for name, tensor in expected_tensors(folder, dtype).items():
        num_repeats = -(-tensor.numel() // PATTERN_NUMBERS)
        flat = pattern.to(tensor.dtype).repeat(num_repeats)[: tensor.numel()]
        payload[name] = flat.view(tensor.shape).clone() if "norm" not in name else torch.ones_like(flat)
    return Weights(
        policy_version=0,
        checksum=checksum_of_tensors(payload),
        num_bytes=num_bytes_of_tensors(payload),
        payload=payload,
    )


def read(group: str, name: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))
    return content


def as_table(cells: list[Cell], weight_bytes: int, sync_s: float) -> str:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "processor"
    lines = [
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {device}: `{shlex.join(['python', *sys.argv])}`",
        "",
        f"Weights: {weight_bytes / 1e9:.2f} GB, to vLLM in {sync_s:.2f} s ({weight_bytes / sync_s / 1e9:.2f} GB/s).",
        "",
        "| batch | context, tokens | tokens/s | bound by bandwidth | share |",
        "|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {cell.batch} | {cell.context_tokens} | {cell.tokens_per_second:,.0f} "
        f"| {cell.bound_tokens_per_second:,.0f} | {cell.tokens_per_second / cell.bound_tokens_per_second:.0%} |"
        for cell in cells
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
