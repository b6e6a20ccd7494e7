"""Names, reasons and ids that others chose are shown as they are, by every command that shows a run."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import pytest

from tests.cli.test_trace_and_report import said
from tests.timeline.runs import modelled_run

NAMES = ["a[/red]b", "exp[rank0]", "[red]h", "[/]", ":smile:", "[link=x]y", "\\[z", "日本 [x]", "{braces}", "<i>&amp;"]
ACTING = ["\x1b[31mred", "bell\x07", "c1\x9b2J", "back\u202ewards", "line\u2028end", "undecodable\udcff", "two\nlines"]
CASES = [(command, name) for command in ("trace", "replay", "jobs") for name in NAMES]
CASES += [("report", name) for name in ("a[/red]b", "".join(name for name in NAMES if "/" not in name))]
ACTING_CASES = [(command, name) for command in ("trace", "replay", "jobs") for name in ACTING]
ACTING_CASES += [("report", "".join(ACTING))]
"""A report takes a second: one of all names together."""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return modelled_run(tmp_path_factory.mktemp("runs") / "run", "run.num_steps=1")


@pytest.fixture
def renamed(run_dir: Path, request: pytest.FixtureRequest) -> Path:
    """The run under the name of the case."""
    folder = run_dir.parent / request.param
    folder.parent.mkdir(exist_ok=True)
    yield run_dir.rename(folder)
    folder.rename(run_dir)


def is_harmless(text: str) -> bool:
    return not [each for each in text if unicodedata.category(each) in {"Cc", "Cs", "Zl"} or each == "\u202e"]


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")


@pytest.mark.parametrize(("command", "renamed"), CASES, indirect=["renamed"])
def test_a_run_is_called_by_its_name(renamed, command, capsys):
    assert renamed.name in said(capsys, [command, str(renamed)])


@pytest.mark.parametrize(("command", "renamed"), ACTING_CASES, indirect=["renamed"])
def test_a_name_that_a_terminal_would_obey_is_only_shown(renamed, command, capsys):
    assert is_harmless(said(capsys, [command, str(renamed)]))
    if command == "report":
        assert is_harmless((renamed / "report.html").read_text().replace("\n", ""))


@pytest.mark.parametrize("renamed", NAMES, indirect=True)
def test_one_run_among_others_hides_none(renamed, run_dir, capsys):
    for other in ("one", "two"):
        (run_dir.parent / other).mkdir(exist_ok=True)
        (run_dir.parent / other / "status.json").write_text("{}")
    text = said(capsys, ["jobs", str(run_dir.parent)])
    assert "3 runs" in text
    assert str(renamed.relative_to(run_dir.parent)) in text


@pytest.mark.parametrize("name", [*NAMES, *ACTING])
def test_a_folder_without_runs_and_one_that_is_not_there_are_named(tmp_path, name, capsys):
    (tmp_path / name).mkdir(parents=True)
    assert "no runs below" in said(capsys, ["jobs", str(tmp_path / name)])
    for command in ("jobs", "report", "trace", "replay"):
        assert is_harmless(said(capsys, [command, str(tmp_path / name / "x")], code=2))


@pytest.mark.parametrize("text", [*NAMES, *ACTING])
def test_what_a_status_says_is_shown_and_not_obeyed(tmp_path, text, capsys):
    status = {"state": "failed", "attempt": 0, "finished_steps": 1, "num_steps": 2, "job_id": None, "updated_at": 1.0}
    status |= {"processor_s": 0.0, "num_gpus": 0}
    (tmp_path / "status.json").write_text(json.dumps(status | {"reason": f"it\n{text}", "host": text}))
    shown = said(capsys, ["jobs", str(tmp_path)])
    assert is_harmless(shown)
    if text in NAMES:
        assert shown.count(text) == 2


@pytest.mark.parametrize("text", ACTING)
def test_no_command_obeys_its_own_words(text, capsys):
    commands = ([text], [f"train{text}"], ["train", text], ["check", f"run.{text}=1"], ["plan", text])
    for words in commands:
        assert is_harmless(said(capsys, words, code=2))
