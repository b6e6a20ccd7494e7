"""Measures the modelled cluster: `python -m tests.benchmarks.simulator [SETUP ...]`.

Runs the paper's end-to-end setups (experiment=e2e, 40 steps) under verl, rlhfuse and rollpacker, each
in a process of its own, and prints processor time after start-up, scheduler events per second, peak memory, and the
modelled mean step time beside the paper's where it gives one (Fig 9; `hardware=h800` is fitted to those). `async` runs
40 asynchronous steps on 64 GPUs, a quarter of which train, with both ways to interrupt engines. `scale` runs
one step of 65,536 requests on 8,192 GPUs; `slope` runs one step of growing size on a growing cluster and prints the
cost of a further event: of what comes on top of the size before. The goals: all nine runs in under 60 s, each
asynchronous one in under 10 s, 8,192 GPUs in under 60 s, below 2 GiB, and a slope near 1.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAPER_MEAN_STEP_S = {
    ("qwen2.5-7b", "verl"): 233,
    ("qwen2.5-7b", "rlhfuse"): 131,
    ("qwen2.5-7b", "rollpacker"): 115,
    ("qwen2.5-14b", "verl"): 383,
    ("qwen2.5-14b", "rlhfuse"): 291,
    ("qwen2.5-14b", "rollpacker"): 172,
}
"""Fig 9a and 9b, over 40 steps."""

E2E = ("qwen2.5-7b", "qwen2.5-14b", "qwen2.5-32b")
MODELLED = ("experiment=e2e", "backend=sim", "run.checkpoint_every_steps=0")
ASYNC = (
    *("setup=flash", "system=flash", "run.num_steps=40", "hardware.num_nodes=8", "placement.trainer=6-7"),
    "run.checkpoint_every_steps=0",
)
SIZES = (16, 256, 1024, 4096)
"""Engines of one GPU; each has 8 requests."""


def measure(words: list[str]) -> dict[str, float]:
    """Run in this process; start-up is not counted, nor is pandas, which pyarrow imports at its first array."""
    import pandas as pd  # noqa: F401

    from rollpacker import pipeline
    from rollpacker.config.compose import compose
    from rollpacker.metrics.tables import read_frame

    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = compose([*words, f"run.dir={run_dir}", "run.progress=none"])
        began = time.process_time()
        pipeline.run(config)
        elapsed_s = time.process_time() - began
        steps = read_frame(run_dir, "steps")
        num_events = sum(1 for log in (run_dir / "events").iterdir() for _ in log.open()) - 1
    return {
        "elapsed_s": elapsed_s,
        "num_events": num_events,
        "memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "step_time_s": steps["step_time_s"].mean(),
        "rollout_time_s": steps["rollout_time_s"].mean(),
        "exposed_reward_time_s": steps["exposed_reward_time_s"].mean(),
        "train_time_s": steps["train_time_s"].mean(),
    }


def measure_apart(*words: str) -> dict[str, float]:
    """Run in a fresh process, so that memory is its own."""
    answer = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.simulator", "--measure", *words],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ,
    )
    measured: dict[str, float] = json.loads(answer.stdout)
    return measured


def cost(measured: dict[str, float]) -> str:
    rate = measured["num_events"] / measured["elapsed_s"]
    return f"{measured['elapsed_s']:5.1f} s, {rate:6,.0f} events/s, {measured['memory_gib']:.2f} GiB"


def run_setups(setups: list[str]) -> None:
    for setup in setups:
        means: dict[str, float] = {}
        for system in ("verl", "rlhfuse", "rollpacker"):
            measured = measure_apart(*MODELLED, f"model={setup}", f"system={system}")
            means[system] = measured["step_time_s"]
            paper = PAPER_MEAN_STEP_S.get((setup, system))
            print(
                f"{setup:11} {system:11} {cost(measured)}; modelled step {means[system]:.0f} s "
                f"(rollout {measured['rollout_time_s']:.0f}, reward {measured['exposed_reward_time_s']:.0f}, "
                f"train {measured['train_time_s']:.0f}){f'; paper {paper} s' if paper else ''}"
            )
        print(f"{setup:11} modelled speedup of rollpacker {means['verl'] / means['rollpacker']:.2f} x")


def one_step(num_engines: int, system: str) -> dict[str, float]:
    """One step of 8 requests per GPU."""
    return measure_apart(
        *MODELLED,
        "model=qwen2.5-7b",
        f"system={system}",
        "run.num_steps=1",
        f"engine.num_engines={num_engines}",
        f"rollout.num_prompts={num_engines}",
    )


def main() -> None:
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "setups", metavar="SETUP", nargs="*", help=f"of {', '.join(E2E)}; or async, scale or slope alone"
    )
    match parser.parse_args().setups:
        case ["async"]:
            for interrupt in ("recompute", "keep"):
                measured = measure_apart(*ASYNC, f"system.interrupt={interrupt}")
                print(f"{interrupt:9} {cost(measured)}; modelled step {measured['step_time_s']:.1f} s")
        case ["scale"]:
            print(f"8192 GPUs, 65,536 requests, verl: {cost(one_step(8192, 'verl'))}")
        case ["slope"]:
            rows = [(num_engines, one_step(num_engines, "rollpacker")) for num_engines in SIZES]
            costs = []
            for (_, smaller), (num_engines, larger) in itertools.pairwise(rows):
                num_more = larger["num_events"] - smaller["num_events"]
                costs.append((larger["elapsed_s"] - smaller["elapsed_s"]) / num_more)
                print(f"{num_engines:5} GPUs: {cost(larger)}, {costs[-1] * 1e6:.0f} us per further event")
            print(f"cost of an event at {SIZES[-1]} GPUs against {SIZES[1]}: {costs[-1] / costs[0]:.2f} x")
        case setups:
            if unknown := [setup for setup in setups if setup not in E2E]:
                parser.error(
                    f"There is no setup {unknown[0]!r} among {', '.join(E2E)}; async, scale and slope run alone."
                )
            run_setups(setups or list(E2E))


if __name__ == "__main__":
    main()
