"""`rollpacker score` writes JSON lines, and refuses a file that is called as one of another format."""

from __future__ import annotations

import pytest

from rollpacker.cli.main import main
from tests.cli.inputs import tree_of

SCORE = ["score", "reward=math", "data.path=prompts.jsonl", "responses=a.jsonl"]


@pytest.mark.parametrize("out", ["x.parquet", "x.CSV", "x.jsonl.gz"])
def test_an_ending_of_another_format_is_refused(out: str, workdir, capsys) -> None:
    before = tree_of(workdir)
    assert main([*SCORE, f"out={out}"]) == 2
    message = capsys.readouterr().err
    assert f"out={out} ends with .{out.rpartition('.')[2]}, and what is written is JSON lines." in message
    assert "Write out=x.jsonl\n" in message
    assert tree_of(workdir) == before


@pytest.mark.parametrize("out", ["x.json", "x", "step-1.5"])
def test_another_name_is_taken(out: str, workdir, capsys) -> None:
    (workdir / "a.jsonl").write_text('{"id": "p0", "response": "1"}\n')
    assert main([*SCORE, f"out={out}"]) == 0
    assert (workdir / out).read_text().startswith('{"id": "p0"')
