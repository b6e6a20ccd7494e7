"""A run whose responses are all cut, and masked, says once that it learns nothing."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.metrics.tables import read_table
from tests.runtime.run.test_wrong_sampling import train

NOTE = "Step 1 had no gradient: 64 of 64 responses were cut and left out of the loss. Raise rollout.max_response_tokens"


@pytest.mark.parametrize("is_masked", [True, False])
async def test_a_run_that_masks_all_of_its_responses_says_so_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, is_masked: bool
) -> None:
    torch.set_num_threads(1)
    make_model(tmp_path / "model", num_iterations=1)
    (tmp_path / "prompts.jsonl").write_text(task.prompt_file(24, random.Random(2)))
    (tmp_path / "mine.py").write_text("def none(rewards):\n    return [0.0] * len(rewards)\n")
    word = "trainer.mask_truncated=true" if is_masked else f"trainer.advantage={tmp_path}/mine.py:none"
    words = ["system=verl", "rollout.max_response_tokens=2", "run.num_steps=2", "run.progress=plain", word]
    await train(tmp_path, tmp_path / "run", *words)
    rows = read_table(tmp_path / "run", "steps").to_pylist()
    assert [row["num_truncated"] for row in rows] == [64, 64]
    assert [(row["clip_fraction"], row["grad_norm"]) for row in rows] == [(None, 0.0)] * 2
    said = " ".join("".join(capsys.readouterr()).split())
    assert said.count("had no gradient") == said.count(NOTE) == is_masked
