"""The demo's task and a model that is warm enough for some of its answers to be right."""

import random

import pytest
import torch
from filelock import FileLock

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model

NUM_PROMPTS = 40
NUM_ITERATIONS = 700


@pytest.fixture(scope="session")
def inputs(tmp_path_factory, worker_id):
    """A folder with `model/` and `prompts.jsonl`. The first process of the tests that asks makes it, in about 20 s."""
    own = tmp_path_factory.getbasetemp()
    folder = (own if worker_id == "master" else own.parent) / "inputs"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            unfinished = folder.with_name("unfinished-inputs")
            torch.set_num_threads(1)
            make_model(unfinished / "model", num_iterations=NUM_ITERATIONS)
            (unfinished / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))
            unfinished.rename(folder)
    return folder
