"""What `check` says below the table of actors and GPUs."""

from __future__ import annotations

import pytest

from rollpacker.runtime.placing import model_fit
from tests.cli.conftest import run

WORDS = ["check", "model.path=model", "data.path=prompts.jsonl", "reward=math", "run.dir=x", "backend.num_gpus=2"]
UNKNOWN = "The memory of a GPU is unknown here, so whether all fits is not checked"


@pytest.fixture(autouse=True)
def unknown_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_fit, "gpu_memory", lambda: None)


def test_a_key_of_a_cluster_is_not_proposed_to_a_run_that_has_none(workdir, capsys) -> None:
    text = run(WORDS, capsys)
    assert f"{UNKNOWN}. The longest" in text
    assert "cluster.gpu_memory_gb" not in text


def test_a_cluster_is_asked_for_the_memory_of_its_gpus(workdir, capsys) -> None:
    assert f"{UNKNOWN}; set cluster.gpu_memory_gb. The longest" in run([*WORDS, "cluster=slurm"], capsys)
    assert "A GPU has 80.0 GB." in run([*WORDS, "cluster=slurm", "cluster.gpu_memory_gb=80"], capsys)
