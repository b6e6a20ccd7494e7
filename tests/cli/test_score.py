"""`rollpacker score`: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from tests.cli.conftest import run

MINE = """
def score(response):
    return {"score": 0.5, "reason": "the answer differs from the reference " + "in a digit " * 5, "n" * 90: 1}
"""


def test_a_reason_or_a_part_of_many_words_hides_no_number(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    (workdir / "mine.py").write_text(MINE)
    (workdir / "answers.jsonl").write_text(f"{json.dumps({'id': 'p0', 'response': '4'})}\n")
    files = ["data.path=prompts.jsonl", "responses=answers.jsonl", "out=scores.jsonl", "reward.timeout_s=20"]
    printed = run(["score", "reward.function=mine.py:score", *files], capsys)
    assert "responses 1 mean reward 0.5000 mean of nnnn" in printed
    assert "nnn… 1.0000 the answer differs from the reference i… 1 (100.0%)" in printed


def test_the_help_begins_with_the_arguments_that_are_needed(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(["help", "score"], capsys)
    own = text[text.index("Arguments") : text.index("Options")]
    assert all(name in own for name in ("reward=OPTION", "data.path=FILE", "responses=FILE", "out=FILE"))
    assert "overwrite" in own
    assert "made ids" in run(["help", "score", "responses"], capsys)


def test_a_run_in_the_place_of_responses_is_answered_with_how_they_become_a_file(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "x").mkdir()
    (workdir / "x" / "run.json").write_text("{}")
    assert main(["score", "reward=math", "data.path=prompts.jsonl", "responses=x", "out=scores.jsonl"]) == 2
    assert "`rollpacker.load('x').samples`" in " ".join(capsys.readouterr().err.split())


def test_a_device_is_no_file_to_write_to(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "reward=math", "data.path=prompts.jsonl", "responses=x", "out=/dev/full"]) == 2
    assert "out=/dev/full is a device." in capsys.readouterr().err
