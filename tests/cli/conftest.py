from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.runtime.run import prompt_look
from tests.cli.inputs import write_model, write_prompts


@pytest.fixture(autouse=True)
def prompts_are_tokenized_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rollpacker check` starts a process for it, which takes over a second; test_preflight.py shows that process."""
    monkeypatch.setattr(prompt_look, "_in_other_process", lambda function, config: function(config))


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `model/` and `prompts.jsonl`, and a terminal of 100 columns."""
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must succeed; gives the words that it prints."""
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return " ".join(printed.out.split())
