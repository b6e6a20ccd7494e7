"""What every trial begins with: a model, prompts, responses, lengths and a finished modelled run, all in order."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

MODELLED = (
    "backend=sim",
    "model=qwen2.5-7b",
    "run.progress=none",
    "rollout.num_prompts=8",
    "rollout.num_responses=2",
    "rollout.max_response_tokens=512",
    "engine.num_engines=2",
    "trainer.tensor_parallel=1",
    "run.checkpoint_every_steps=1",
)
"""A modelled run of a few milliseconds a step."""

REAL = (
    "model.path=model",
    "data.path=prompts.jsonl",
    "reward=walk",
    "rollout.num_prompts=8",
    "data.max_prompt_tokens=64",
    "rollout.max_response_tokens=64",
)
"""What `check` is asked about: a run of this machine, which is not started."""

_MAKE = """
import random, sys
from pathlib import Path
import torch
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
torch.set_num_threads(1)
folder = Path(sys.argv[1])
make_model(folder / "model", num_iterations=1)
(folder / "prompts.jsonl").write_text(task.prompt_file(40, random.Random(2)))
"""
"""In a process of its own, so that the process that starts the trials has no threads of torch's when it forks."""


def make_ground(folder: Path) -> None:
    """Write everything into a new folder."""
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-c", _MAKE, str(folder)], check=True)
    ids = [json.loads(line)["id"] for line in (folder / "prompts.jsonl").read_text().splitlines()]
    answers = [json.dumps({"id": prompt, "response": "1"}) for prompt in ids]
    (folder / "responses.jsonl").write_text("\n".join(answers) + "\n")
    lengths = random.Random(3)
    rows = [f"{lengths.randint(10, 500)}" for _ in range(200)]
    (folder / "lengths.csv").write_text("\n".join(["length_tokens", *rows]) + "\n")
    train = [sys.executable, "-m", "rollpacker.cli", "train", *MODELLED, "run.num_steps=3", "run.dir=run"]
    subprocess.run(train, check=True, cwd=folder, capture_output=True)
