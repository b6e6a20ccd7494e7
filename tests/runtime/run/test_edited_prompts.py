"""A resumed run tells of training prompts that were edited under the same ids."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

import torch

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from tests.golden.real import BackendHere

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


async def test_a_run_that_goes_on_with_edited_prompts_says_so_until_a_checkpoint_knows_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    make_model(tmp_path / "model", num_iterations=1)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(task.prompt_file(24, random.Random(2)))

    async def says_on_the_way_to(num_steps: int) -> str:
        words = [
            *(f"run.dir={tmp_path}/run", f"model.path={tmp_path}/model", f"data.path={prompts}", "reward=walk"),
            *("engine.num_engines=1", "data.max_prompt_tokens=16", "run.progress=plain", "system=verl"),
            *("rollout.num_prompts=4", "rollout.num_responses=2", "rollout.max_response_tokens=16"),
            *(f"run.num_steps={num_steps}", "run.checkpoint_every_steps=1", "run.resume=auto"),
        ]
        config = compose(words)
        await pipeline.train(config, BackendHere(config))
        return " ".join("".join(capsys.readouterr()).split())

    await says_on_the_way_to(1)
    assert "Edited" not in await says_on_the_way_to(2)
    rows = [json.loads(line) for line in prompts.read_text().splitlines()]
    prompts.write_text("".join(json.dumps(row | {"note": "edited"}) + "\n" for row in rows))
    note = f"Edited since the checkpoint of step 2: prompts of {rows[0]['domain']}. Rewards from before and after are"
    assert note in await says_on_the_way_to(3)
    assert "Edited" not in await says_on_the_way_to(4)
