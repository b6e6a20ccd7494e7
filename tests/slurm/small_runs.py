"""A run that is small enough for tests, whose rollouts are long enough to be hit in the middle."""

import pytest

from rollpacker.config.words import replaced
from tests.e2e.launched import LaunchedRun

PATIENT_START = "backend.deadlines.start_s=600"
"""Beside other work, the libraries of a run's processes take minutes to import."""


def small_run(inputs, *overrides):
    """A step is a second of rollout, one response after the other, and little else; `overrides` win."""
    own = [
        f"model.path={inputs / 'model'}",
        f"data.path={inputs / 'prompts.jsonl'}",
        "data.max_prompt_tokens=16",
        "reward=walk",
        "rollout.num_prompts=4",
        "rollout.num_responses=12",
        "rollout.max_response_tokens=48",
        "trainer.learning_rate=1e-3",
        "run.num_epochs=1",
        "run.checkpoint_every_steps=2",
        "system=verl",
        "engine.num_engines=1",
        "engine.max_num_seqs=1",
        PATIENT_START,
    ]
    return replaced(own, overrides)


@pytest.fixture(scope="session")
def unbroken(inputs, made_once):
    """The folder of the run as it is outside Slurm."""

    def make(folder):
        run = LaunchedRun(folder / "run", *small_run(inputs))
        assert run.wait() == 0, run.output()

    return made_once("unbroken", make) / "run"
