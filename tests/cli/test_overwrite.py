"""`out=` replaces a file that exists only with `overwrite=true`, whatever the command."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.cli.main import main
from tests.cli.inputs import tree_of


@pytest.mark.parametrize(
    "words",
    [
        ["report", "nowhere"],
        ["trace", "nowhere"],
        ["data", "gsm8k", "from=nowhere"],
        ["score", "data.path=prompts.jsonl", "responses=nowhere"],
        ["evaluate", "nowhere"],
        ["calibrate", "reference=nowhere"],
    ],
    ids=lambda words: words[0],
)
def test_a_file_that_exists_is_refused_without_overwrite(
    words: list[str], workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (workdir / "old.yaml").write_text("old")
    before = tree_of(workdir)
    for overwrite, problem in (
        ([], "out=old.yaml exists.\n"),
        (["overwrite=false"], "out=old.yaml exists.\n"),
        (["overwrite=perhaps"], "overwrite=perhaps is not legal"),
        (["overwrite=true"], "nowhere"),
    ):
        assert main([*words, "out=old.yaml", *overwrite]) == 2
        assert problem in capsys.readouterr().err
    assert tree_of(workdir) == before
    assert main([words[0], "--help", "overwrite"]) == 0
    assert "true replaces the file that `out` names" in " ".join(capsys.readouterr().out.split())
