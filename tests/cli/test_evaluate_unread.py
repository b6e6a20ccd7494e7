"""`rollpacker evaluate` where the reader of its output has left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.schema import RunConfig
from tests.cli.test_evaluate import MODEL, SET, write_evaluation


@pytest.mark.parametrize(("least", "code"), [("0.2", 0), ("0.3", 1)])
def test_a_requirement_decides_the_exit_code_also_where_nobody_reads_the_responses(
    least: str, code: int, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(config: RunConfig, *_: object) -> None:
        write_evaluation(config.run.dir, {"aime24": [[0.25]]})

    monkeypatch.setattr("rollpacker.launch.ranks.train", train)
    (workdir / "test.jsonl").write_text('{"id": "t1", "domain": "math", "prompt": "91 + 2 =", "ground_truth": "93"}\n')
    reader, writer = os.pipe()
    os.close(reader)
    assert main(["evaluate", *MODEL, SET, f"out=/dev/fd/{writer}", f"require=aime24>={least}"]) == code
    os.close(writer)
