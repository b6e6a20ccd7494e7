from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from rollpacker.config.record import to_yaml
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


@pytest.fixture
def run_dir(workdir: Path) -> Path:
    """A run with the checkpoints of steps 4 and 6, of which the first is the best; and a held-out file."""
    (workdir / "test.jsonl").write_text('{"id": "t1", "domain": "math", "prompt": "91 + 2 =", "ground_truth": "93"}\n')
    run_dir = workdir / "runs" / "x"
    for step in (4, 6):
        folder = run_dir / "checkpoints" / f"step-{step:06d}" / "trainer" / "model"
        folder.mkdir(parents=True)
        for file in (workdir / "model").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    (run_dir / "checkpoints" / "best").symlink_to("step-000004")
    config = compose(["model.path=model", "data.path=prompts.jsonl", "rollout.num_prompts=8", f"run.dir={run_dir}"])
    (run_dir / "config.yaml").write_text(to_yaml(config))
    return run_dir


def run(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must succeed; gives the words that it prints."""
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return " ".join(printed.out.split())
