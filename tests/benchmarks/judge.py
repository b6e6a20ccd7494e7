"""Answers per second of an LLM judge over how many are judged at a time, by each of its engines.

    python -m tests.benchmarks.judge                                  # a small random model on this processor
    python -m tests.benchmarks.judge --model DIR --dtype bfloat16 --engines torch vllm streamed --batches 1 16 64

Without --model a model of random weights and byte tokens is made: a verdict costs what it costs, right or wrong. Each
cell judges so many answers of the given lengths in one call, twice, and takes the faster one. Answers come in groups of
eight to the same question, as in a run, so that an engine with a prefix cache may profit. In brackets: answers per
second of processor time over all of the engine's processes, which says more on a machine that has other work. Nobody
has run it on a GPU yet. Results: tests/benchmarks/results/judge.md.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import torch
import transformers

from rollpacker.config.sections.judge import JudgeSection
from rollpacker.config.sections.model import ModelSection
from rollpacker.engines.factory import open_judge
from tests.judges import make_tokenizer

GROUP = 8
"""Answers to one question."""


def make_model(folder: Path, layers: int, hidden: int) -> None:
    """Write a random model of byte tokens."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 128,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        eos_token_id=tokenizer.eos_token_id,
    )
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)


def answers(num: int, question_tokens: int, answer_tokens: int, seed: int) -> list[np.ndarray]:
    """Prompts of the judge: every group has one question, and answers of log-normal lengths."""
    numbers = np.random.default_rng(seed)
    prompts: list[np.ndarray] = []
    while len(prompts) < num:
        question = numbers.integers(0, 250, question_tokens)
        lengths = np.clip(numbers.lognormal(np.log(answer_tokens), 0.5, GROUP), 1, 4 * answer_tokens).astype(int)
        prompts += [np.concatenate([question, numbers.integers(0, 250, length)]).astype(np.int32) for length in lengths]
    return prompts[:num]


def processor_s() -> float:
    """Of this process and all that it started."""
    times = [process.cpu_times() for process in (psutil.Process(), *psutil.Process().children(recursive=True))]
    return sum(time.user + time.system for time in times)


async def measure(section: JudgeSection, batches: list[int], question_tokens: int, answer_tokens: int) -> list[str]:
    """Answers per second at each batch size, and per second of processor time."""
    judge = open_judge(section)
    cells = []
    try:
        await judge.next_token_logprobs(answers(2, question_tokens, answer_tokens, 0), (1, 2))
        for size in batches:
            rates = []
            for seed in (1, 2):
                prompts = answers(size, question_tokens, answer_tokens, 100 * size + seed)
                began, began_cpu = time.perf_counter(), processor_s()
                await judge.next_token_logprobs(prompts, (1, 2))
                taken, taken_cpu = time.perf_counter() - began, processor_s() - began_cpu
                rates.append((size / taken, size / max(taken_cpu, 0.01)))  # a clock of 10 ms
            wall, cpu = map(max, zip(*rates, strict=True))
            cells.append(f"{wall:.1f} ({cpu:.1f})")
    finally:
        await judge.close()
    return cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--engines", nargs="+", default=["torch", "vllm", "streamed"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4, 16, 64])
    parser.add_argument("--question-tokens", type=int, default=200)
    parser.add_argument("--answer-tokens", type=int, default=300)
    parser.add_argument("--max-batch-tokens", type=int, default=8192)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"| engine | {' | '.join(f'{size} at a time' for size in given.batches)} |")
    print(f"|---|{'---|' * len(given.batches)}")
    with tempfile.TemporaryDirectory() as scratch:
        if given.model is None:
            make_model(Path(scratch), given.layers, given.hidden)
        for engine in given.engines:
            section = JudgeSection(
                model=ModelSection(path=given.model or Path(scratch), dtype=given.dtype),
                engine=engine,
                max_prompt_tokens=4096,
                max_batch_tokens=given.max_batch_tokens,
                memory_share=0.9,
                kv_cache_mb=256 if engine == "vllm" and not torch.cuda.is_available() else None,
            )
            cells = asyncio.run(measure(section, given.batches, given.question_tokens, given.answer_tokens))
            print(f"| {engine} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
