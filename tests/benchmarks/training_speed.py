"""Measures a trainer's tokens per second and model FLOPs utilization (MFU) for a shape with random weights.

    torchrun --nproc-per-node=8 tests/benchmarks/training_speed.py trainer=megatron shape=qwen2.5-7b tensor_parallel=2
    python tests/benchmarks/training_speed.py trainer=torch shape=tiny dtype=float32

Arguments are words `key=value`: `trainer` (torch, fsdp, megatron), `shape` (tiny, qwen2.5-0.5b, qwen2.5-7b), `dtype`,
`length` (response tokens of each sample), `samples` (of a step), `steps` (timed, after one that is not), and every key
of the section `trainer` of a run's configuration. It needs a GPU per rank for figures that mean something; without one
it runs on the CPU over gloo, and says so.

A step is what a run makes: forward and backward of all samples with GRPO's loss, one optimizer update. A step's FLOPs
are 6 per parameter and token, and 12 * layers * width per token and position of attention, halved because it is causal
(PaLM, arXiv 2204.02311, appendix B); activations that are recomputed count once. `peak_tflops` is what the accelerator
could do: known for H100 and H200 (989, dense bfloat16), else give it.

**Nobody has run it on a GPU yet.** On two shared cores of a CPU it was run to see that it works, not for a figure.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers import Qwen2Config, Qwen2ForCausalLM

from rollpacker.config.sections.trainer import TrainerSection
from rollpacker.protocols.trainer import TrainerRank
from rollpacker.trainers.microbatches import Sample, pack
from rollpacker.trainers.process_group import join, leave

PEAK_TFLOPS = {"H100": 989.0, "H200": 989.0}
"""Dense bfloat16 of the SXM parts, from NVIDIA's data sheets."""
TIMEOUT_S = 600
"""Of a collective, and of building the model on rank 0."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 512,
        "hidden_size": 64,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "qwen2.5-0.5b": {
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
    },
    "qwen2.5-7b": {
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
    },
}
PROMPT_TOKENS = 128


@dataclass(frozen=True, kw_only=True)
class Bench:
    """What is measured."""

    trainer: str
    shape: str
    dtype: str
    length: int
    num_samples: int
    num_steps: int
    peak_tflops: float | None
    section: TrainerSection


def main(words: list[str]) -> None:
    bench = _parse(words)
    rank, num_ranks = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    if bench.trainer != "torch" or num_ranks > 1:
        join(_own_rank(rank, num_ranks), timeout_s=TIMEOUT_S)
    with tempfile.TemporaryDirectory() as folder:
        policy = _make_policy(bench, _random_model(bench, Path(folder)))
    seconds = _time_steps(bench, policy)
    if rank == 0:
        print(json.dumps(_report(bench, seconds, num_ranks, policy.device), indent=2))
    policy.close()
    leave()


def _own_rank(rank: int, num_ranks: int) -> TrainerRank | None:
    """Meet where torchrun said, at the next port: it uses its own itself."""
    if num_ranks == 1:
        return None
    place = f"{os.environ['MASTER_ADDR']}:{int(os.environ['MASTER_PORT']) + 1}"
    return TrainerRank(rank=rank, num_ranks=num_ranks, rendezvous=place)


def _parse(words: list[str]) -> Bench:
    given = dict(word.split("=", 1) for word in words)
    trainer = given.pop("trainer", "torch")
    shape = given.pop("shape", "tiny")
    if shape not in SHAPES:
        raise SystemExit(f"shape={shape}\nAllowed: {', '.join(SHAPES)}")
    return Bench(
        trainer=trainer,
        shape=shape,
        dtype=given.pop("dtype", "bfloat16"),
        length=int(given.pop("length", "1024")),
        num_samples=int(given.pop("samples", "64")),
        num_steps=int(given.pop("steps", "5")),
        peak_tflops=float(given.pop("peak_tflops", "0")) or None,
        section=TrainerSection.model_validate({"name": trainer, **given}),
    )


def _random_model(bench: Bench, folder: Path) -> Path:
    """Every rank writes its own: nodes need not share a folder."""
    torch.manual_seed(0)
    config = Qwen2Config(**SHAPES[bench.shape], tie_word_embeddings=False, max_position_embeddings=32768)
    # Half the bytes on disk; the trainer chooses its own precision.
    Qwen2ForCausalLM(config).bfloat16().save_pretrained(folder)
    return folder


def _make_policy(bench: Bench, model_path: Path) -> Any:
    known: dict[str, Any] = {"model_dtype": bench.dtype, "temperature": 1.0, "seed": 0}
    match bench.trainer:
        case "megatron":
            from rollpacker.trainers.megatron.policy import MegatronPolicy

            return MegatronPolicy(model_path, bench.section, **known, timeout_s=TIMEOUT_S)
        case "fsdp":
            from rollpacker.trainers.fsdp.policy import FsdpPolicy

            return FsdpPolicy(model_path, bench.section, **known, timeout_s=TIMEOUT_S)
        case _:
            from rollpacker.trainers.torch_policy import TorchPolicy

            return TorchPolicy(model_path, bench.section, **known)


def _time_steps(bench: Bench, policy: Any) -> list[float]:
    """Seconds of each step after the first, which warms up."""
    generator = np.random.default_rng(0)
    vocabulary = SHAPES[bench.shape]["vocab_size"]
    samples = [
        Sample(
            prompt_token_ids=generator.integers(0, vocabulary, PROMPT_TOKENS).astype(np.int32),
            response_token_ids=generator.integers(0, vocabulary, bench.length).astype(np.int32),
            behaviour_logprobs=np.zeros(bench.length, dtype=np.float32),
            advantage=1.0,
        )
        for _ in range(bench.num_samples)
    ]
    own = samples[policy.replica :: policy.num_replicas]
    weight = 1 / sum(len(sample.response_token_ids) for sample in samples)
    seconds = []
    for _ in range(bench.num_steps + 1):
        _wait_for_all()
        start_s = time.perf_counter()
        policy.clear_gradients()
        policy.accumulate(
            pack(own, bench.section.max_tokens_per_microbatch, policy.device),
            lambda microbatch, scores: -(weight * microbatch.advantages_N * scores.logprobs_N).sum(),
        )
        policy.update(1e-6)
        _wait_for_all()
        seconds.append(time.perf_counter() - start_s)
    return seconds[1:]


def _wait_for_all() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    if dist.is_initialized():
        dist.barrier()


def _report(bench: Bench, seconds: list[float], num_ranks: int, device: torch.device) -> dict[str, Any]:
    shape = SHAPES[bench.shape]
    tokens = bench.num_samples * (PROMPT_TOKENS + bench.length - 1)
    step_s = float(np.median(seconds))
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    peak = bench.peak_tflops or next((known for part, known in PEAK_TFLOPS.items() if part in name), None)
    flops = tokens * (6 * _num_parameters(shape) + 6 * shape["num_hidden_layers"] * shape["hidden_size"] * bench.length)
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
        "device": f"{num_ranks} x {name}",
        "torch": torch.__version__,
        "tokens_per_step": tokens,
        "step_s": [round(second, 4) for second in seconds],
        "tokens_per_s": round(tokens / step_s, 1),
        "model_tflops_per_rank": round(flops / step_s / num_ranks / 1e12, 3),
        "mfu": None if peak is None else round(flops / step_s / num_ranks / 1e12 / peak, 4),
        "note": "a CPU's figures say that it works, not how fast" if device.type == "cpu" else "",
    }


def _num_parameters(shape: dict[str, Any]) -> int:
    """That multiply every token: layers and output layer, not the embedding."""
    width = shape["hidden_size"]
    keys = 2 * width * shape["num_key_value_heads"] // shape["num_attention_heads"]
    layer = width * (2 * width + keys + 3 * shape["intermediate_size"])
    total: int = shape["num_hidden_layers"] * layer + width * shape["vocab_size"]
    return total


if __name__ == "__main__":
    main(sys.argv[1:])
