"""Measures dynamic sampling in modelled runs: `python -m tests.benchmarks.dynamic_sampling [KEY=VALUE ...]`.

Plain and tail batching, each with and without dynamic sampling, on the paper's 7B setup with math prompts of mixed
difficulty. Per step: its time, what was generated, how many prompts were dropped, and what a trained prompt *with
variance* costs in seconds and tokens: without dynamic sampling a part of the batch teaches nothing.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame

SYSTEMS = {
    "plain": ("system=verl", "system.reward=async"),
    "plain, dynamic": ("system=dapo",),
    "tail": ("system=tail-reward",),
    "tail, dynamic": ("system=dapo-rollpacker",),
}
SETUP = (
    "setup=paper",
    "backend=sim",
    "model=qwen2.5-7b",
    "workload=math",
    "workload.num_prompts=40000",
    "workload.solve_rate_rho=0.6",
    "rollout.max_response_tokens=8192",
    "run.num_steps=10",
    "run.checkpoint_every_steps=0",
    "run.progress=none",
)


def measure(words: Sequence[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        pipeline.run(compose([*SETUP, *words, f"run.dir={run_dir}"]))
        steps, responses = read_frame(run_dir, "steps"), read_frame(run_dir, "responses")
    trained = responses[responses["accepted"]]
    num_useful = int((trained.groupby(["step", "epoch", "prompt"])["reward"].nunique() > 1).sum())
    return {
        "step_s": steps["step_time_s"].mean(),
        "tokens": steps["tokens_generated"].mean() / 1e6,
        "dropped_tokens": steps["tokens_dropped"].mean() / 1e6,
        "launched": steps["num_prompts_launched"].mean(),
        "dropped": steps["num_prompts_dropped"].mean(),
        "useful": num_useful / len(steps),
        "s_per_useful": steps["step_time_s"].sum() / num_useful,
        "tokens_per_useful": steps["tokens_generated"].sum() / num_useful / 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", metavar="KEY=VALUE", nargs="*", help="further settings of every run")
    settings = parser.parse_args().settings
    print(
        f"{'':16} {'step':>8} {'M tokens':>9} {'of dropped':>10} {'launched':>9} {'dropped':>8} {'useful':>7} "
        f"{'s/useful':>9} {'k tokens/useful':>16}"
    )
    for name, words in SYSTEMS.items():
        row = measure([*words, *settings])
        print(
            f"{name:16} {row['step_s']:6.1f} s {row['tokens']:9.2f} {row['dropped_tokens']:10.2f} "
            f"{row['launched']:9.1f} {row['dropped']:8.1f} {row['useful']:7.1f} {row['s_per_useful']:9.3f} "
            f"{row['tokens_per_useful']:16.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
