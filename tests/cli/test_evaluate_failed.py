"""`rollpacker evaluate` where a part of it fails: what was scored is not lost, and whose fault it was is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.schema import RunConfig
from rollpacker.core.errors import EngineFailed, ModelError
from tests.cli.test_evaluate import MODEL, SET, write_evaluation


def test_what_was_scored_before_a_failure_is_shown(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        if config.model.path == run_dir / "checkpoints" / "step-000004" / "trainer" / "model":
            raise EngineFailed("An engine has died.")
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    assert main(["evaluate", str(run_dir), SET, "at=all", "out=scores.parquet", "require=aime24>=1"]) == 1
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert [line[:2] for line in lines[:2]] == [["step", "set"], ["0", "aime24"]]
    assert "An engine has died." in shown.err
    assert "require" not in shown.err
    assert not Path("scores.parquet").exists(), "the command may be repeated"


def test_scores_are_shown_also_where_the_file_for_them_can_no_longer_be_written(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})
        Path("scores.parquet").mkdir()

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    assert main(["evaluate", *MODEL, SET, "out=scores.parquet"]) == 2
    shown = capsys.readouterr()
    assert "aime24" in shown.out
    assert "0.250" in shown.out
    assert "out=scores.parquet is a folder" in shown.err


def test_a_checkpoint_that_its_run_removes_before_it_is_loaded_is_no_mistake_of_the_command(
    run_dir: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        assert config.model.path is not None
        shutil.rmtree(config.model.path)
        raise ModelError(f"The model directory {config.model.path} does not exist.")

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    assert main(["evaluate", str(run_dir), SET]) == 1
    said = " ".join(capsys.readouterr().err.split())
    model = f"{run_dir}/checkpoints/step-000006/trainer/model"
    assert f"The model directory {model} does not exist. {model} was removed meanwhile: its run goes on." in said
    assert "at=best" in said
