"""`rollpacker score`: what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
