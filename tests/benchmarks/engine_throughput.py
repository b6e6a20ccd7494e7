"""Tokens per second of the torch engine's decoder against transformers' `generate`, on the same model and thread.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.engine_throughput [--rounds 5] [--models 2x64 4x128] [--continuous]

Two loads per batch size: every response has 128 tokens; or response lengths are log-normal (median 20, sigma 1, cut at
128), which `generate` can only serve by generating up to the longest and throwing the rest away. Only tokens that were
asked for count. The machine is shared, so each round runs both sides in turn, time is the process's CPU time (one
thread), and the table shows each side's best round; `ratio` is ours over transformers'.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

from rollpacker.core.ids import PromptId, RequestId
from rollpacker.engines.torch.attention import use_grouped_attention
from rollpacker.engines.torch.decoder import Decoder
from rollpacker.protocols.rollout import GenerationRequest

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 112
PROMPT_TOKENS = 8
MAX_TOKENS = 128


def make_model(num_layers: int, hidden_size: int) -> Any:
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 32,
        num_key_value_heads=max(1, hidden_size // 64),
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.AutoModelForCausalLM.from_config(config).eval()


def decode(model: Any, prompts: np.ndarray, lengths: np.ndarray) -> None:
    decoder = Decoder(model, max_num_seqs=256, max_tokens_per_seq=512, eos_token_ids=(), clock=time.monotonic)
    for index, (prompt, length) in enumerate(zip(prompts, lengths, strict=True)):
        decoder.add(
            GenerationRequest(
                request=RequestId(0, PromptId(0, str(index)), 0),
                prompt_token_ids=prompt,
                seed=index,
                max_response_tokens=int(length),
                temperature=1.0,
            )
        )
    num_tokens = 0
    while not decoder.is_idle:
        num_tokens += sum(len(generation.token_ids) for generation in decoder.step())
    assert num_tokens == lengths.sum()


def generate(model: Any, prompts: np.ndarray, lengths: np.ndarray) -> None:
    input_ids = torch.from_numpy(prompts.astype(np.int64))
    longest = int(lengths.max())
    output = model.generate(
        input_ids,
        attention_mask=torch.ones_like(input_ids),
        do_sample=True,
        top_k=0,
        min_new_tokens=longest,
        max_new_tokens=longest,
    )
    assert output.shape[1] == PROMPT_TOKENS + longest


def continuous(model: Any, prompts: np.ndarray, lengths: np.ndarray) -> None:
    """transformers' own continuous batching; one length for all."""
    settings = transformers.GenerationConfig(
        max_new_tokens=int(lengths.max()), do_sample=True, top_k=0, eos_token_id=-1, pad_token_id=0
    )
    batching = transformers.ContinuousBatchingConfig(
        return_logprobs=True, max_memory_percent=0.5, max_batch_tokens=1024, num_blocks=128
    )
    outputs = model.generate_batch(
        prompts.tolist(), generation_config=settings, continuous_batching_config=batching, progress_bar=False
    )
    assert sum(len(output.generated_tokens) for output in outputs.values()) == lengths.max() * len(lengths)


def cpu_seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", nargs="+", default=["2x64", "4x128"], help="layers x hidden size")
    parser.add_argument("--batches", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--continuous", action="store_true", help="also transformers' own (needs psutil)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sides: dict[str, Callable[..., None]] = {"rollpacker": decode, "generate": generate}
    if options.continuous:
        sides["continuous"] = continuous
    print(f"{'model':>6} {'batch':>5} {'lengths':>11} " + " ".join(f"{side:>12}" for side in sides) + "   ratio")
    for name in options.models:
        num_layers, hidden_size = (int(part) for part in name.split("x"))
        models = {side: make_model(num_layers, hidden_size) for side in sides}
        use_grouped_attention(models["rollpacker"])
        for batch in options.batches:
            numbers = np.random.default_rng(0)
            prompts = numbers.integers(0, VOCABULARY, (batch, PROMPT_TOKENS)).astype(np.int32)
            tailed = np.clip(numbers.lognormal(np.log(20), 1.0, batch), 1, MAX_TOKENS).astype(np.int64)
            for kind, lengths in (("all 128", np.full(batch, MAX_TOKENS)), ("long-tailed", tailed)):
                best = dict.fromkeys(sides, float("inf"))
                for _ in range(options.rounds):
                    for side, run in sides.items():
                        if side == "continuous" and kind == "long-tailed":
                            continue
                        seconds = cpu_seconds(lambda: run(models[side], prompts, lengths))  # noqa: B023  # runs at once
                        best[side] = min(best[side], seconds)
                speeds = {side: lengths.sum() / seconds for side, seconds in best.items()}
                ratio = speeds["rollpacker"] / speeds["generate"]
                figures = " ".join(f"{speed:>12,.0f}" if speed else f"{'-':>12}" for speed in speeds.values())
                print(f"{name:>6} {batch:>5} {kind:>11} {figures}   {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    main()
