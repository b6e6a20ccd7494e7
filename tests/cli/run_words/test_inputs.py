"""`check` says of a modelled run which shape it models, and of a real one where the model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import main


def model_line(capsys: pytest.CaptureFixture[str], words: list[str]) -> str:
    assert main(["check", *words]) == 0
    return " ".join(capsys.readouterr().out.split()).split("model 2", 1)[-1].split(" prompts ")[0]


def test_a_modelled_run_says_whose_shape_it_is_and_not_where_weights_are(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert model_line(capsys, ["backend=sim", "model=qwen2.5-7b", "model.path=nowhere"]).endswith(
        "computed in bfloat16, the shape of Qwen2.5-7B"
    )
    assert model_line(capsys, ["backend=sim", "model.path=model"]).endswith("computed in float32, from model")


def test_check_refuses_a_shape_of_another_model(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["backend=sim"], ["data.path=prompts.jsonl"]):
        assert main(["check", "model=qwen2.5-7b", "model.path=model", *words]) == 2
        assert "model.path=model has another shape than model.name=Qwen2.5-7B" in capsys.readouterr().err
