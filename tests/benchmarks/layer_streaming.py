"""Tokens per second of a streamed judge against its resident share, and against the plain judge (engine=torch).

    python -m tests.benchmarks.layer_streaming [--model DIR] [--lengths 1024 4096] [--prompts 16] [--rounds 5]

Without `--model` it makes a random one of `--layers` x `--hidden`, in the proportions of Qwen2.5-7B. Every prompt has
the length of its row. On a GPU time is wall time, and the shares show what the copies cost that compute does not hide.
On a CPU no copy is hidden, so `ratio` shows what streaming costs beside them at most; time is the process's CPU time
(one thread, a shared machine). Each round runs every side in turn, and the table shows each side's best one. `ratio` is
a side's time over the plain judge's, which a GPU may have no room for: then `--no-plain`.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.engines.torch.judge import TorchJudge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rollpacker.protocols.rollout import TokenIds

CANDIDATES = (5, 6)
PLAIN = "plain"


def save_random_model(folder: Path, num_layers: int, hidden_size: int, dtype: str) -> None:
    """Write a random model whose layers have Qwen2.5-7B's proportions."""
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=4096,
        hidden_size=hidden_size,
        intermediate_size=int(hidden_size * 18944 / 3584) // 64 * 64,
        num_hidden_layers=num_layers,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=max(1, hidden_size // 448),
        max_position_embeddings=32_768,
        tie_word_embeddings=False,
    )
    transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, dtype)).save_pretrained(folder)


def open_side(name: str, section: JudgeSection) -> TorchJudge:
    if name == PLAIN:
        return TorchJudge(section)
    return TorchJudge(section.model_copy(update={"engine": "streamed", "resident_share": float(name)}))


async def measure(sides: dict[str, TorchJudge], prompts: Sequence[TokenIds], rounds: int) -> dict[str, float]:
    """Give the best round's seconds of each side."""
    now = time.perf_counter if torch.cuda.is_available() else time.process_time
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds + 1):  # the first one warms up
        for name, judge in sides.items():
            begun = now()
            await judge.next_token_logprobs(prompts, CANDIDATES)
            best[name] = min(best[name], now() - begun)
    return best


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a local directory in Hugging Face format")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=448)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="bfloat16 on a GPU, else float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128])
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--shares", nargs="+", default=["0", "0.25", "0.5", "0.75", "1"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--memory-share", type=float, default=0.9)
    parser.add_argument("--no-plain", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    has_gpu = torch.cuda.is_available()
    dtype = options.dtype or ("bfloat16" if has_gpu else "float32")
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            save_random_model(Path(folder), options.layers, options.hidden, dtype)
        section = JudgeSection(
            model=ModelSection(path=options.model or Path(folder), dtype=dtype), memory_share=options.memory_share
        )
        # one after the other on a GPU, whose memory they would share
        names = [*([] if options.no_plain else [PLAIN]), *options.shares]
        groups = [[name] for name in names] if has_gpu else [names]
        print(torch.cuda.get_device_name() if has_gpu else f"CPU, one thread, torch {torch.__version__}", dtype)
        print(f"{'tokens':>12} {'share':>6} {'tokens/s':>9} {'ratio':>6}")
        numbers = np.random.default_rng(0)
        for length in options.lengths:
            prompts = [numbers.integers(0, 1000, length).astype(np.int32) for _ in range(options.prompts)]
            best: dict[str, float] = {}
            for group in groups:
                sides = {name: open_side(name, section) for name in group}
                best |= await measure(sides, prompts, options.rounds)
                for judge in sides.values():
                    await judge.close()
            for name, seconds in best.items():
                ratio = f"{seconds / best[PLAIN]:>6.2f}" if PLAIN in best else f"{'-':>6}"
                batch = f"{options.prompts} x {length}"
                print(f"{batch:>12} {name:>6} {options.prompts * length / seconds:>9,.0f} {ratio}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
