"""A run whose engines stop drawing from the policy ends before it learns from them; one whose rounds race does not."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.core.errors import WrongSampling
from rollpacker.demo import task
from rollpacker.demo.warm_start import make_model
from rollpacker.engines.torch import sampling
from rollpacker.metrics.tables import read_table
from tests.golden.real import BackendHere

if TYPE_CHECKING:
    from pathlib import Path

SAMPLE = sampling.sample


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("inputs")
    torch.set_num_threads(1)
    make_model(folder / "model", num_iterations=1)
    (folder / "prompts.jsonl").write_text(task.prompt_file(24, random.Random(2)))
    return folder


async def train(inputs: Path, run_dir: Path, *words: str) -> None:
    config = compose(
        [
            *(f"run.dir={run_dir}", f"model.path={inputs}/model", f"data.path={inputs}/prompts.jsonl"),
            *("reward=walk", "engine.num_engines=1", "data.max_prompt_tokens=16", "run.progress=none"),
            *("rollout.num_prompts=8", "rollout.num_responses=8", "rollout.max_response_tokens=16"),
            *("run.num_steps=3", "run.checkpoint_every_steps=1", *words),
        ]
    )
    await pipeline.train(config, BackendHere(config))


def break_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Draw the likeliest token, and give its right log-probability, as soon as there is a folder."""

    def sample(logits: torch.Tensor, temperatures: Any, uniforms: torch.Tensor) -> Any:
        if not folder.exists():
            return SAMPLE(logits, temperatures, uniforms)
        said, tokens = logits.float().log_softmax(-1).max(-1)
        return tokens, said

    monkeypatch.setattr("rollpacker.engines.torch.decoder.sample", sample)


async def test_a_run_whose_engine_breaks_ends_and_names_the_last_good_checkpoint(inputs, tmp_path, monkeypatch):
    break_once(monkeypatch, tmp_path / "run" / "checkpoints" / "step-000001")
    with pytest.raises(WrongSampling, match="The engines' tokens of step 1 are not drawn from the policy") as caught:
        await train(inputs, tmp_path / "run", "system=verl")
    assert "step-000001/trainer/model" in caught.value.remedy
    assert [row["step"] for row in read_table(tmp_path / "run", "steps").to_pylist()] == [0]
    assert [each.name for each in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-000001"]


async def test_a_race_selects_so_its_steps_are_reported_and_not_tested(inputs, tmp_path, monkeypatch):
    break_once(monkeypatch, tmp_path)
    await train(inputs, tmp_path / "run", "system=tail")
    rows = read_table(tmp_path / "run", "steps").to_pylist()
    assert [row["round_kind"] for row in rows] == ["short"] * 3
    assert max(row["surprisal_z"] for row in rows) < -12


async def test_without_the_stop_a_run_goes_on_with_a_warning(inputs, tmp_path, monkeypatch, capsys):
    break_once(monkeypatch, tmp_path)
    await train(inputs, tmp_path / "run", "system=verl", "trainer.surprisal_stop_z=null", "run.progress=plain")
    rows = read_table(tmp_path / "run", "steps").to_pylist()
    assert len(rows) == 3
    assert all(row["surprisal"] < row["entropy"] for row in rows)
    assert " ".join("".join(capsys.readouterr()).split()).count("not drawn from the policy") == 1
