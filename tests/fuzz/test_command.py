"""`python -m tests.fuzz`: what it takes, prints and saves."""

import json

import pytest

from tests.fuzz.__main__ import main
from tests.fuzz.bugs import BUGS
from tests.fuzz.bugs.harness import with_bug


def test_worlds_that_hold_end_with_a_summary_and_exit_code_0(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["seeds=0:5"]) == 0
    shown = capsys.readouterr().out
    assert "5 worlds, " in shown
    assert "Faults: " in shown
    assert "Violations: 0." in shown
    assert list(tmp_path.iterdir()) == []


def test_two_processes_find_what_one_finds(capsys, monkeypatch):
    monkeypatch.setattr("tests.fuzz.campaign.SEEDS_PER_TASK", 2)
    summaries = []
    for jobs in ("1", "2"):
        assert main(["seeds=0:6", f"jobs={jobs}"]) == 0
        summaries.append(capsys.readouterr().out)
    assert summaries[0] == summaries[1]


def test_a_violation_is_shrunk_and_saved_and_the_exit_code_is_1(capsys, tmp_path):
    bug = next(bug for bug in BUGS if bug.name == "forget to defer")
    with with_bug(bug):
        assert main(["seeds=0:6", f"out={tmp_path / 'out'}"]) == 1
    said = capsys.readouterr()
    assert "worlds violated an invariant" in said.err
    assert "events are enough" in said.out
    saved = sorted((tmp_path / "out").iterdir())
    assert {file.suffix for file in saved} == {".json", ".jsonl"}
    assert json.loads(saved[0].read_text())["found"]["rule"]


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("seeds=5:5", "FIRST below END"),
        ("seeds=-1:5", "FIRST below END"),
        ("seeds=many", "FIRST below END"),
        ("jobs=0", "from 1 to"),
        ("jobs=two", "from 1 to"),
        ("jobs=100000", "from 1 to"),
        ("seeds=0:99999999999999999999", "at most 1,000,000,000"),
        ("out=/proc/x", "is in /proc"),
        ("out=/dev/null", "is a device"),
        ("out=/etc/passwd", "is a file"),
        ("out=", "It takes seeds=..."),
        ("sedes=0:5", "It takes seeds=..."),
        ("--seeds", "It takes seeds=..."),
    ],
)
def test_bad_words_are_refused(capsys, word, message):
    assert main([word]) == 2
    assert message in capsys.readouterr().err


def test_interrupted_worlds_are_counted(capsys, monkeypatch):
    def interrupted(seeds, num_jobs):
        from tests.fuzz.campaign import run_seeds

        yield from run_seeds(seeds[:3])
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.fuzz.campaign.outcomes", interrupted)
    assert main(["seeds=0:12"]) == 130
    assert "3 worlds, " in capsys.readouterr().out
