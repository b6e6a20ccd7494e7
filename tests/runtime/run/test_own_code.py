"""A resumed run tells of code of the user's that was edited since its last attempt."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.schema import RunConfig
from rollpacker.runtime.run.own_code import checksums
from rollpacker.runtime.run.run_folder import RUN_FILE, identify_run
from tests.cli.inputs import write_checkpoint, write_prompts

WORDS = ("model.path=m", "data.path=p.jsonl", "run.dir=run", "run.resume=auto")
MINE = "reward.parts={own: {function: 'rw.py:good', weight: 1}, other: {function: 'kit.scores:short', weight: 1}}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prompts(tmp_path / "p.jsonl")
    (tmp_path / "rw.py").write_text("good = len\n")
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "__init__.py").write_text("raise RuntimeError('it is imported')\n")
    (tmp_path / "kit" / "scores.py").write_text("short = len\n")
    return tmp_path


def notes_of(config: RunConfig) -> list[str]:
    notes: list[str] = []
    identify_run(config, notes.append)
    return notes


def test_files_and_modules_have_checksums_wherever_they_are_named_and_are_not_imported(folder: Path) -> None:
    assert checksums(compose([*WORDS, MINE])).keys() == {"rw.py", "kit.scores"}
    tools = "environment.tools=[rw.py:good,kit.scores:short,missing.py:x,kit.nothing:x]"
    before = checksums(compose([*WORDS, "reward=math", "environment=tools", tools]))
    (folder / "kit" / "scores.py").write_text("short = max\n")
    after = checksums(compose([*WORDS, "reward=math", "environment=tools", tools]))
    assert before.keys() == after.keys() == {"rw.py", "kit.scores"}
    assert [place for place in after if after[place] != before[place]] == ["kit.scores"]


@pytest.mark.parametrize("packages", [(), ("deep",), ("deep", "deep/er")], ids=len)
def test_folders_without_init_have_modules_too(folder: Path, packages: tuple[str, ...]) -> None:
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "score.py").write_text("one = len\n")
    for package in packages:
        (folder / package / "__init__.py").touch()
    assert checksums(compose([*WORDS, "reward.function=deep.er.score:one"])).keys() == {"deep.er.score"}


def test_a_resumed_run_tells_once_which_file_was_edited(folder: Path) -> None:
    config = compose([*WORDS, MINE])
    write_checkpoint(Path("run"), [*WORDS, MINE], 10)
    assert notes_of(config) == [], "a checkpoint does not hold them"
    assert notes_of(config) == []
    (folder / "rw.py").write_text("good = max\n")
    (note,) = notes_of(config)
    assert "Edited since the last attempt of this run: rw.py. If rewards" in note
    assert notes_of(config) == []


def test_a_run_without_a_step_has_no_scores_to_tell_of(folder: Path) -> None:
    config = compose([*WORDS, MINE])
    notes_of(config)
    before = json.loads((folder / "run" / RUN_FILE).read_text())
    (folder / "rw.py").write_text("good = max\n")
    assert notes_of(config) == []
    assert json.loads((folder / "run" / RUN_FILE).read_text())["run_id"] == before["run_id"]
