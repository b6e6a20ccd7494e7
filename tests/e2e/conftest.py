"""The demo's task and a model that is warm enough for some of its answers to be right."""

import random

import pytest
import torch
from filelock import FileLock

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from tests.e2e.launched import LaunchedRun, small_run
from tests.walks_in_turns import WALKS_IN_TURNS

NUM_PROMPTS = 40
NUM_ITERATIONS = 700


@pytest.fixture(scope="session")
def made_once(tmp_path_factory, worker_id):
    """Makes a folder in the first process of the tests that asks for its name; the others wait, and share it."""
    own = tmp_path_factory.getbasetemp()

    def made(name, make):
        folder = (own if worker_id == "master" else own.parent) / name
        with FileLock(f"{folder}.lock"):
            if not folder.exists():
                unfinished = tmp_path_factory.mktemp(f"unfinished-{name}")
                make(unfinished)
                unfinished.rename(folder)
        return folder

    return made


@pytest.fixture(scope="session")
def inputs(made_once):
    """A folder with `model/` and `prompts.jsonl`, made in about 20 s."""

    def make(folder):
        torch.set_num_threads(1)
        make_model(folder / "model", num_iterations=NUM_ITERATIONS)
        (folder / "prompts.jsonl").write_text(task.prompt_file(NUM_PROMPTS, random.Random(2)))

    return made_once("inputs", make)


@pytest.fixture(scope="session")
def turns_inputs(made_once):
    """A folder as `inputs`, with a model that writes a pair per turn."""

    def make(folder):
        torch.set_num_threads(1)
        make_model(folder / "model", num_iterations=450, language=WALKS_IN_TURNS)
        (folder / "prompts.jsonl").write_text(task.prompt_file(40, random.Random(2)))
        (folder / "unseen.jsonl").write_text(task.prompt_file(6, random.Random(3)))

    return made_once("turns", make)


@pytest.fixture(scope="session")
def plain_run(inputs, made_once):
    """The folder of a run of five steps under plain batching, which nothing disturbs."""

    def make(folder):
        words = small_run(inputs, "system=verl", "engine.num_engines=1", "weight_sync.transport=handles")
        run = LaunchedRun(folder / "run", *words)
        assert run.wait() == 0, run.output()

    return made_once("plain", make) / "run"
