"""The demo's walks with an environment that answers every step, beside the same walks in one turn.

Both models are warmed up alike, each in its language; both runs have the setup `walks`. What is compared is the score
on held-out walks, greedy, before and after so many steps and at every checkpoint between.

In turns the advantage is `step_reinforce`, whose discount makes an early end worth more: without it the policy unlearns
its wrong `+2` by taking `+1`, and long walks reach the limit of 480 tokens.

    python -m tests.benchmarks.turns FOLDER [STEPS]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import torch

from rollpacker.demo import task
from rollpacker.demo.warm_start import NUM_ITERATIONS, make_model
from rollpacker.metrics.tables import read_table
from tests.walks_in_turns import WALKS_IN_TURNS

NUM_UNSEEN = 300

TURNS = (
    "reward=environment",
    "environment=gym",
    "environment.env=rollpacker.environments.walk_turns:WalkTurns",
    "environment.max_turns=100",
    "environment.max_open=64",
    "rollout.max_response_tokens=480",
    "trainer.advantage=step_reinforce",
    "trainer.turn_discount=0.95",
    "trainer.learning_rate=6e-4",
)


def main(folder: Path, num_steps: int) -> None:
    """Make the inputs, train both, and print a line for each."""
    torch.set_num_threads(1)
    prompts = task.prompt_file(4096, random.Random(2))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prompts.jsonl").write_text(prompts)
    (folder / "unseen.jsonl").write_text(task.unseen_file(NUM_UNSEEN, random.Random(3), prompts))
    for name, language, words in (("one turn", task.WALKS, ()), ("turns", WALKS_IN_TURNS, TURNS)):
        began_s = time.monotonic()
        place = folder / name.replace(" ", "_")
        make_model(place / "model", num_iterations=NUM_ITERATIONS, language=language)
        made_s = time.monotonic() - began_s
        command = [
            *(sys.executable, "-m", "rollpacker.cli", "train", "setup=walks", "system=verl", f"run.dir={place}/run"),
            *(f"model.path={place}/model", f"data.path={folder}/prompts.jsonl", f"run.num_steps={num_steps}"),
            *(f"evaluation.path={folder}/unseen.jsonl", "evaluation.at_start=true", "evaluation.at_end=true"),
            *("run.progress=plain", "backend.deadlines.start_s=600", "engine.max_num_seqs=128", *words),
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows = read_table(place / "run", "evaluations").to_pylist()
        scores = " -> ".join(f"{row['reward_mean']:.3f}" for row in rows)
        print(
            f"{name}: held-out {scores} after {num_steps} steps; "
            f"model {made_s:.0f} s, run {time.monotonic() - began_s - made_s:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", metavar="FOLDER", type=Path)
    parser.add_argument("num_steps", metavar="STEPS", nargs="?", type=int, default=60)
    given = parser.parse_args()
    main(given.folder, given.num_steps)
