"""`rollpacker profile` refuses what could not end well, before anything starts."""

from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.words import replaced
from tests.cli.inputs import tree_of

RUN = ["model.path=model", "data.path=prompts.jsonl", "reward=math"]


def _nothing(workdir: Path) -> None:
    pass


def _existing(workdir: Path) -> None:
    (workdir / "old.json").write_text("old")


def _folder(workdir: Path) -> None:
    (workdir / "old.json").mkdir()


BAD = {
    "no destination": (_nothing, [], ["`out` is not set", "Add out="]),
    "another suffix": (_nothing, ["out=p.csv"], ["out=p.csv", ".json"]),
    "an existing file": (_existing, ["out=old.json"], ["out=old.json exists", "overwrite=true"]),
    "a folder": (_folder, ["out=old.json", "overwrite=true"], ["is a folder"]),
    "below a file": (_nothing, ["out=prompts.jsonl/p.json"], ["out=prompts.jsonl/p.json", "is a file"]),
    "a bad truth value": (
        _nothing,
        ["out=p.json", "overwrite=perhaps"],
        ["overwrite=perhaps", "true, false"],
    ),
    "a modelled backend": (_nothing, ["out=p.json", "backend=sim"], ["backend.name=sim", "hardware.profile"]),
    "no model": (_nothing, ["out=p.json", "model.path=gone"], ["gone", "does not exist"]),
    "a misspelt key": (_nothing, ["out=p.json", "engine.num_engine=1"], ["engine.num_engines"]),
    "a modelled degree": (_nothing, ["out=p.json", "engine.tensor_parallel=2"], ["engine.tensor_parallel=2"]),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_ends_with_exit_code_2_a_remedy_and_nothing_created(case, workdir, capsys):
    prepare, words, expected = BAD[case]
    prepare(workdir)
    before = tree_of(workdir)
    assert main(["profile", *replaced(RUN, words)]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    for part in expected:
        assert part in message
    assert tree_of(workdir) == before


def test_help_says_what_it_takes_and_what_for(capsys):
    assert main(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    assert "out=FILE" in text
    assert "hardware.profile" in text
