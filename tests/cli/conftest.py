from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.inputs import write_model, write_prompts


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with `model/` and `prompts.jsonl`, and a terminal of 100 columns."""
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path
