"""The demo's step against TRL's GRPOTrainer: the same model, prompts, reward, batch and learning rate, one thread each.

    make demo                                                     # makes runs/demo/input
    python3 -m venv /tmp/trl && /tmp/trl/bin/pip install uv
    /tmp/trl/bin/uv pip install --python /tmp/trl/bin/python --torch-backend auto --constraints .ci/constraints.txt \
        --editable . --group benchmark
    /tmp/trl/bin/python tests/benchmarks/trl_comparison.py [--steps 60]

TRL generates a batch with transformers' `generate`, in one process; RollPacker has one engine, so that each side
decodes with one thread and learns with one thread. Both systems of RollPacker run, and all three take the prompts in
the order of the file. The first steps are not counted: allocators and caches warm up.

A decode slot of `generate` is a row of its batch; it is idle once its response has ended and others have not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollpacker.config.compose import compose
from rollpacker.config.schema import RunConfig
from rollpacker.metrics.tables import read_frame
from rollpacker.rewards import walk

NUM_WARM_UP_STEPS = 5
"""One cycle of short rounds and a long one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one side did; times and lengths are means per step."""

    name: str
    step_time_s: float
    idle_share: float
    longest_tokens: float
    reward_first: float
    reward_last: float


@dataclass(slots=True, kw_only=True)
class Batches:
    """What TRL's reward function and callback saw, one entry per step."""

    step_times_s: list[float] = field(default_factory=list)
    lengths: list[list[int]] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)


def overrides(inputs: Path, system: str, run_dir: Path, num_steps: int) -> list[str]:
    return [
        *("experiment=demo", f"system={system}", f"model.path={inputs / 'model'}"),
        *(f"data.path={inputs / 'prompts.jsonl'}", "data.shuffle=false", "engine.num_engines=1"),
        *(f"run.dir={run_dir}", f"run.num_steps={num_steps}", "run.progress=none"),
    ]


def measure_rollpacker(words: list[str], name: str, run_dir: Path) -> Measured:
    subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", "train", *words], check=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    steps = read_frame(run_dir, "steps").sort_values("step").iloc[NUM_WARM_UP_STEPS:]
    idle, busy = steps["decode_slot_steps_idle"].sum(), steps["decode_slot_steps_busy"].sum()
    return Measured(
        name=name,
        step_time_s=float(steps["step_time_s"].mean()),
        idle_share=float(idle / (idle + busy)),
        longest_tokens=float(steps["response_length_max_tokens"].mean()),
        reward_first=float(steps["reward_mean"].head(10).mean()),
        reward_last=float(steps["reward_mean"].tail(10).mean()),
    )


def measure_trl(config: RunConfig, output: Path) -> Measured:
    import torch
    import trl

    torch.set_num_threads(1)
    batches = train_with_trl(config, output)
    lengths = batches.lengths[NUM_WARM_UP_STEPS:]
    decoded = sum(map(sum, lengths))
    slots = sum(len(batch) * max(batch) for batch in lengths)
    times = batches.step_times_s[NUM_WARM_UP_STEPS:]
    rewards = batches.rewards[NUM_WARM_UP_STEPS:]
    return Measured(
        name=f"TRL {trl.__version__}",
        step_time_s=sum(times) / len(times),
        idle_share=1 - decoded / slots,
        longest_tokens=sum(max(batch) for batch in lengths) / len(lengths),
        reward_first=sum(rewards[:10]) / 10,
        reward_last=sum(rewards[-10:]) / 10,
    )


def train_with_trl(config: RunConfig, output: Path) -> Batches:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    batches = Batches()
    tokenizer = AutoTokenizer.from_pretrained(config.model.path)

    def reward(
        completions: list[str], completion_ids: list[list[int]], ground_truth: list[str], **_: Any
    ) -> list[float]:
        rewards = [
            walk.score(text, truth, is_truncated=ids[-1] != tokenizer.eos_token_id).reward
            for text, ids, truth in zip(completions, completion_ids, ground_truth, strict=True)
        ]
        batches.lengths.append([len(ids) for ids in completion_ids])
        batches.rewards.append(sum(rewards) / len(rewards))
        return rewards

    class Stopwatch(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
        started = 0.0

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.started = time.perf_counter()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            batches.step_times_s.append(time.perf_counter() - self.started)

    trainer, rollout = config.trainer, config.rollout
    records = [json.loads(line) for line in config.data.files[0].path.read_text().splitlines()]
    GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(config.model.path, dtype=config.model.dtype),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_list(records).select_columns(["prompt", "ground_truth"]),
        callbacks=[Stopwatch()],
        args=GRPOConfig(
            output_dir=str(output),
            max_steps=config.run.num_steps,
            per_device_train_batch_size=rollout.num_prompts * rollout.num_responses,
            num_generations=rollout.num_responses,
            max_completion_length=rollout.max_response_tokens,
            temperature=rollout.temperature,
            top_k=0,
            shuffle_dataset=False,
            learning_rate=trainer.learning_rate,
            lr_scheduler_type=trainer.lr_schedule,
            adam_beta1=trainer.adam_betas[0],
            adam_beta2=trainer.adam_betas[1],
            weight_decay=trainer.weight_decay,
            max_grad_norm=trainer.max_grad_norm,
            epsilon=config.objective.clip_ratio_low,
            epsilon_high=config.objective.clip_ratio_high,
            beta=0.0,
            loss_type="dr_grpo",  # what loss_normalisation=token_bound is
            scale_rewards="group",
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            report_to=[],
            seed=config.run.seed,
        ),
    ).train()
    return batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--input", type=Path, default=Path("runs/demo/input"), help="what the demo made")
    parser.add_argument("--steps", type=int, default=60)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        words = overrides(chosen.input, "verl", scratch / "verl", chosen.steps)
        config = compose(words)
        sides = [measure_trl(config, scratch / "trl"), measure_rollpacker(words, "plain batches", scratch / "verl")]
        words = overrides(chosen.input, "rollpacker", scratch / "tail", chosen.steps)
        sides.append(measure_rollpacker(words, "tail batching", scratch / "tail"))
    print(f"steps {NUM_WARM_UP_STEPS} to {chosen.steps}, means per step\n")
    print(
        "| | seconds per step | idle decode slots | longest response | reward, first and last 10 steps | against TRL |"
    )
    print("|---|---:|---:|---:|---:|---:|")
    for side in sides:
        print(
            f"| {side.name} | {side.step_time_s:.3f} | {side.idle_share:.0%} | {side.longest_tokens:.0f} tokens "
            f"| {side.reward_first:.2f}, {side.reward_last:.2f} | {sides[0].step_time_s / side.step_time_s:.2f} x |"
        )


if __name__ == "__main__":
    main()
