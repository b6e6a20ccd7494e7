"""The parallelism planner on real vLLM engines whose KV cache is small enough to preempt, against the fixed degree.

    python -m tests.benchmarks.planner DIR                       # two engines of degree 1, or one of degree 2
    python -m tests.benchmarks.planner DIR --switch restart --steps 6
    python -m tests.benchmarks.planner DIR --profile             # measures a profile first, for the planner's guess

On a processor an engine of degree 2 is two processes of vLLM, each with half of the model; its KV cache gains what the
weights take less of each, as on GPUs. The model is random, so responses end by chance: a long tail. DIR keeps model,
prompts and runs. Results: tests/benchmarks/results/planner.md.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
from pathlib import Path

import torch

from rollpacker.demo.task import prompt_file
from rollpacker.metrics.tables import read_frame
from tests.benchmarks.random_model import random_model, texts_of, train_tokenizer

NUM_PROMPTS = 96
SHOWN = (
    "step",
    "tensor_parallel",
    "num_preemptions",
    "rollout_time_s",
    "tokens_generated",
    "tokens_per_second",
    "parallelism_gain",
    "switch_time_s",
    "requests_running_mean",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--switch", default="sleep", choices=["sleep", "restart"])
    parser.add_argument("--kv-cache-mb", type=int, default=4)
    parser.add_argument("--profile", action="store_true", help="measure a profile first")
    parser.add_argument("--systems", nargs="+", default=["verl", "planner"])
    options = parser.parse_args()
    words = prepare(options.folder, options.kv_cache_mb)
    degrees = ["engine.degrees=[1,2]", f"engine.switch={options.switch}"]
    profile = options.folder / "profile.json"
    if options.profile:
        rollpacker("profile", *words, *degrees, "system=planner", f"out={profile}", "overwrite=true")
        degrees.append(f"engine.profile={profile}")
    for system in options.systems:
        run_dir = options.folder / f"{system}-{options.switch}{'-profile' if options.profile else ''}"
        own = degrees if system == "planner" else []
        rollpacker("train", *words, *own, f"system={system}", f"run.dir={run_dir}", f"run.num_steps={options.steps}")
        print(run_dir.name)
        print(read_frame(run_dir, "steps")[list(SHOWN)].to_string(index=False))


def prepare(folder: Path, kv_cache_mb: int) -> list[str]:
    """Make model and prompts where they are missing; gives the words of every command."""
    model, prompts = folder / "model", folder / "prompts.jsonl"
    if not model.exists():
        torch.set_num_threads(1)
        folder.mkdir(parents=True, exist_ok=True)
        prompts.write_text(prompt_file(NUM_PROMPTS, random.Random(2)))
        tokenizer = train_tokenizer(texts_of(prompts), 300)
        random_model(tokenizer, layers=4, hidden=256, positions=512).save_pretrained(model)
        tokenizer.save_pretrained(model)
    return [
        f"model.path={model}",
        f"data.path={prompts}",
        "data.max_prompt_tokens=16",
        "reward=walk",
        "rollout.num_prompts=8",
        "rollout.num_responses=4",
        "rollout.max_response_tokens=240",
        "trainer.learning_rate=1e-6",
        "engine=vllm",
        "engine.num_engines=2",
        "engine.max_num_seqs=32",
        f"engine.vllm.kv_cache_mb={kv_cache_mb}",
        "backend.deadlines.start_s=900",
        "run.progress=plain",
    ]


def rollpacker(*words: str) -> None:
    # a script from the same environment
    subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )


if __name__ == "__main__":
    main()
