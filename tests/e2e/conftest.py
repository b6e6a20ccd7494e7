"""The demo's task and a model that is warm enough for some of its answers to be right."""

import random

import pytest
import torch

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model

NUM_PROMPTS = 40
NUM_ITERATIONS = 700


@pytest.fixture(scope="session")
def inputs(tmp_path_factory):
    """A folder with `model/` and `prompts.jsonl`."""
    folder = tmp_path_factory.mktemp("inputs")
    torch.set_num_threads(1)
    make_model(folder / "model", num_iterations=NUM_ITERATIONS)
    (folder / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))
    return folder
