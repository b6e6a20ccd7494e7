"""`rollpacker trace` and `rollpacker report` as a user meets them: what they write, and what they refuse."""

import errno
import gzip
import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.metrics.columns import SCHEMA_VERSION
from tests.timeline.runs import modelled_run
from tests.unreadable import make_unreadable


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    run_dir = modelled_run(folder / "run", "system=rollpacker", "run.num_steps=2")
    return run_dir.rename(folder / "seed=1")  # as Hydra names the points of a multirun


def said(capsys, argv, code=0) -> str:
    assert main(argv) == code
    printed = capsys.readouterr()
    return " ".join((printed.err if code else printed.out).split())


def test_a_trace_lies_in_the_run_unless_told_otherwise(run_dir, tmp_path, capsys):
    assert "2 steps (modelled)" in said(capsys, ["trace", str(run_dir)])
    assert json.loads(gzip.decompress((run_dir / "trace.json.gz").read_bytes()))["traceEvents"]
    assert "1 step (modelled)" in said(capsys, ["trace", str(run_dir), "steps=1", f"out={tmp_path / 'x.json'}"])
    assert json.loads((tmp_path / "x.json").read_text())["traceEvents"]


def test_a_trace_says_which_of_the_steps_that_were_asked_for_the_run_does_not_have(run_dir, tmp_path, capsys):
    cut = said(capsys, ["trace", str(run_dir), "steps=2:9", f"out={tmp_path / 'x.json'}"])
    assert f"{run_dir} has no step after 2." in cut
    assert "1 step (modelled)" in cut
    assert "no step after" not in said(capsys, ["trace", str(run_dir), "steps=1:2", f"out={tmp_path / 'y.json'}"])


@pytest.mark.parametrize(("command", "default"), [("trace", "trace.json.gz"), ("report", "report.html")])
def test_the_default_file_is_replaced_and_any_other_one_only_by_overwrite(command, default, run_dir, tmp_path, capsys):
    for words in ([], [f"out={run_dir / default}"], [f"out={os.path.relpath(run_dir / default)}"]):
        (run_dir / default).write_text("old")
        said(capsys, [command, str(run_dir), *words])
        assert (run_dir / default).read_bytes() != b"old"
    other = tmp_path / "prompts.jsonl"
    other.write_text("old")
    assert f"out={other} exists." in said(capsys, [command, str(run_dir), f"out={other}"], code=2)
    assert other.read_text() == "old"
    said(capsys, [command, str(run_dir), f"out={other}", "overwrite=true"])
    assert other.read_bytes() != b"old"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "was given no run"),
        (["a", "b"], "was given a b"),
        (["missing"], "missing does not exist"),
        (["missing", "stesp=1"], "Write steps=..."),
        (["missing", "steps=3:2"], "steps=3:2. It is one step, counted from 1, or FIRST:LAST"),
        (["EMPTY"], "is not a run: it has no metrics/manifest.json"),
        (["UNFINISHED"], "unfinished` says whether it runs, or why it ended"),
        (["PARENT"], "Give one of the runs in it, such as"),
        (["RUN", "steps=7:9"], "has none of the steps 7 to 9 It has the steps 1 to 2"),
        (["FILE"], "is a file"),
    ],
)
def test_what_is_no_run_is_refused_in_three_parts(run_dir, tmp_path, capsys, words, message):
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "run.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    places = {
        "RUN": run_dir,
        "PARENT": run_dir.parent,
        "UNFINISHED": tmp_path / "unfinished",
        "EMPTY": tmp_path / "empty",
        "FILE": tmp_path / "file",
    }
    assert message in said(capsys, ["trace", *(str(places.get(word, word)) for word in words)], code=2)


@pytest.mark.parametrize("command", ["trace", "report"])
def test_a_run_that_only_evaluated_is_called_one_with_what_shows_it(command, tmp_path, capsys):
    held_out = tmp_path / "new.jsonl"
    held_out.write_text(json.dumps({"id": "q", "domain": "math", "prompt": "New?", "ground_truth": "1"}) + "\n")
    run_dir = modelled_run(tmp_path / "run", f"evaluation.path={held_out}", "run.num_steps=0")
    text = said(capsys, [command, str(run_dir)], code=2)
    assert f"{run_dir} is a run that only evaluates (run.num_steps=0): it has no training step" in text
    assert f"`rollpacker jobs {run_dir}` shows its held-out scores" in text
    assert f"Give one of the runs in it, such as {run_dir}" in said(capsys, [command, str(tmp_path)], code=2)
    assert "new 0.000" in said(capsys, ["jobs", str(run_dir)])
    (run_dir / "config.yaml").write_text("run: 5")
    assert "is a run without a finished step yet" in said(capsys, [command, str(run_dir)], code=2)


@pytest.mark.parametrize("version", [SCHEMA_VERSION - 1, SCHEMA_VERSION + 1])
@pytest.mark.parametrize("command", ["trace", "report"])
def test_a_run_of_another_version_is_refused_with_both_versions(run_dir, tmp_path, capsys, command, version):
    manifest = tmp_path / "metrics" / "manifest.json"
    manifest.parent.mkdir()
    plain = json.loads((run_dir / "metrics" / "manifest.json").read_text())
    manifest.write_text(json.dumps(plain | {"schema_version": version}))
    told = said(capsys, [command, str(tmp_path)], code=2)
    assert f"was written with schema version {version}" in told
    assert f"This rollpacker reads version {SCHEMA_VERSION}" in told


def test_a_report_lies_in_the_run_unless_told_otherwise(run_dir, tmp_path, capsys):
    assert "2 steps (modelled)" in said(capsys, ["report", str(run_dir)])
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    said(capsys, ["report", str(run_dir), str(run_dir), "step=1", f"out={tmp_path / 'x.html'}"])
    assert "step 1, a " in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "c"], "It takes the run.dir of one run, or of two to compare, and any of step=..., out=..."),
        (["RUN", "step=x"], "step=x is not legal. `step` is an integer of at least 1"),
        (["RUN", "step=0"], "step=0 is not legal. `step` is an integer of at least 1"),
        (["RUN", "step=7"], "has no step 7 It has the steps 1 to 2"),
        (["RUN", "missing"], "missing does not exist"),
        (["RUN", "stpe=1"], "Write step=..."),
    ],
)
def test_a_report_of_what_is_not_there_is_refused_in_three_parts(run_dir, capsys, words, message):
    assert message in said(capsys, ["report", *(str(run_dir) if word == "RUN" else word for word in words)], code=2)


@pytest.mark.parametrize("command", ["trace", "report"])
def test_an_out_that_is_no_file_is_refused_before_the_run_is_read(command, tmp_path, capsys):
    (tmp_path / "folder").mkdir()
    assert "is a folder" in said(capsys, [command, "missing", f"out={tmp_path / 'folder'}"], code=2)
    assert "is a device" in said(capsys, [command, "missing", "out=/dev/full"], code=2)


@pytest.mark.parametrize(("command", "begin"), [("trace", '{"displayTimeUnit"'), ("report", "<!doctype html>")])
def test_out_may_be_standard_output_and_the_summary_goes_elsewhere(command, begin, run_dir):
    command = [sys.executable, "-m", "rollpacker.cli", command, str(run_dir), "out=-"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.lower().startswith(begin.lower())
    assert "2 steps (modelled)" in done.stderr
    assert "2 steps (modelled)" not in done.stdout


GARBLED = {
    "garbage": lambda _: [b"%&!"],
    "an object without anything": lambda _: [b"{}"],
    "NUL": lambda line: [b"\0" * len(line)],
    "a missing line": lambda _: [],
    "a line twice": lambda line: [line, line],
    "half a line": lambda line: [line[: len(line) // 2]],
    "an event of no kind": lambda line: [line.replace(b'"type":"', b'"type":"X', 1)],
    "no text": lambda line: [b"\xff" + line[1:]],
    "an event that is no object": lambda line: [json.dumps(json.loads(line) | {"event": 5}).encode()],
}
"""What becomes of a line in the middle of an event log."""


@pytest.fixture
def copied(run_dir, tmp_path):
    return Path(shutil.copytree(run_dir, tmp_path / "copied"))


@pytest.mark.parametrize("command", ["report", "trace"])
@pytest.mark.parametrize("case", GARBLED)
def test_a_broken_line_of_the_event_log_is_named_with_what_is_not_shown_because_of_it(copied, command, case, capsys):
    log = copied / "events" / "attempt-000.jsonl"
    lines = log.read_bytes().split(b"\n")
    middle = len(lines) // 2
    log.write_bytes(b"\n".join([*lines[:middle], *GARBLED[case](lines[middle]), *lines[middle + 1 :]]))
    note = said(capsys, [command, str(copied)])
    found = re.search(r"left out, so engines that .* are not shown: \S*jsonl, line (\d+) is broken", note)
    assert found, note
    assert int(found[1]) - (middle + 1) in {0, 1}, "a line that comes twice is found at the second"
    if command == "report":
        assert "The event logs are left out" in (copied / "report.html").read_text()


@pytest.mark.parametrize("command", ["report", "trace"])
@pytest.mark.parametrize("case", ["cut", "gone"])
def test_an_event_log_that_ends_early_is_said_to(copied, command, case, capsys):
    log = copied / "events" / "attempt-000.jsonl"
    if case == "gone":
        log.unlink()
        assert "There is no event log: engines that joined" in said(capsys, [command, str(copied)])
        return
    lines = log.read_bytes().split(b"\n")
    second = next(number for number, line in enumerate(lines) if b'"type":"StepStarted","step":1' in line)
    log.write_bytes(b"\n".join(lines[:second]) + b"\n")
    assert "say nothing of 1 of 2 steps, such as step 2" in said(capsys, [command, str(copied)])


@pytest.mark.parametrize(
    ("command", "what"), [("report", "Held-out scores and texts are not shown"), ("trace", "Not all held-out requests")]
)
def test_a_damaged_evaluation_is_named_and_the_rest_of_the_run_is_shown(command, what, tmp_path, capsys):
    prompt = {"id": "q", "domain": "math", "prompt": "New?", "ground_truth": "1"}
    (tmp_path / "new.jsonl").write_text(json.dumps(prompt))
    words = (f"evaluation.path={tmp_path / 'new.jsonl'}", "run.num_steps=1")
    run_dir = modelled_run(tmp_path / "run", *words)
    damaged = max((run_dir / "evaluation" / "evaluation_responses").glob("*.parquet"))
    damaged.write_bytes(b"PAR1")
    text = said(capsys, [command, str(run_dir), f"out={tmp_path / 'out'}"])
    assert re.search(rf"{what}.*: {damaged} is not readable", text), text
    assert "1 step (modelled)" in text
    written = html.unescape((tmp_path / "out").read_text())
    assert what in written


def test_a_whole_run_has_nothing_to_note(run_dir, capsys):
    for command in ("report", "trace"):
        text = said(capsys, [command, str(run_dir)])
        assert "not shown" not in text
        assert "not known" not in text


@pytest.mark.parametrize(
    ("file", "content", "note"),
    [
        ("config.yaml", b"run: [", "config.yaml is broken: "),
        ("config.yaml", b"[]", "config.yaml is broken: it is not a mapping"),
        ("config.yaml", b"run: 5", "config.yaml is broken: run is not a section"),
        ("config.yaml", b"\0", "config.yaml is broken: "),
        ("config.yaml", b"\xff\xfe\xff", "config.yaml is broken: "),
        ("config.yaml", b"[" * 10_000, "config.yaml is broken: "),
        ("config.yaml", None, "There is no config.yaml, so the run's settings are not shown"),
        (
            "status.json",
            b"{",
            "status.json cannot be read: it is damaged, or another version wrote it. So it is not known",
        ),
        ("status.json", None, "There is no status.json. So it is not known how the run ended."),
    ],
)
def test_a_file_of_a_run_is_called_broken_or_missing_as_it_is(copied, file, content, note, capsys):
    if content is None:
        (copied / file).unlink()
    else:
        (copied / file).write_bytes(content)
    assert note in said(capsys, ["report", str(copied)])
    assert note in html.unescape((copied / "report.html").read_text())


@pytest.mark.parametrize("file", ["config.yaml", "status.json"])
def test_a_file_of_a_run_that_may_not_be_read_is_not_called_broken(copied, file, capsys, monkeypatch):
    make_unreadable(monkeypatch, copied / file, errno.EACCES)
    text = said(capsys, ["report", str(copied)])
    assert f"{file} cannot be read: Permission denied. So " in text
    assert "broken" not in text
    assert "damaged" not in text


def test_a_replay_names_steps_that_its_logs_have_lost(copied, capsys):
    assert "say nothing" not in said(capsys, ["replay", str(copied)])
    log = copied / "events" / "attempt-000.jsonl"
    lines = log.read_bytes().split(b"\n")
    second = next(number for number, line in enumerate(lines) if b'"type":"StepStarted","step":1' in line)
    log.write_bytes(b"\n".join(lines[:second]) + b"\n")
    text = said(capsys, ["replay", str(copied)])
    assert "commands are the same" in text
    assert "The event logs say nothing of 1 of 2 steps, such as step 2" in text
    (copied / "metrics" / "manifest.json").write_text("{")
    assert "Whether the logs are complete is not known: " in said(capsys, ["replay", str(copied)])


@pytest.mark.parametrize("command", ["report", "trace"])
def test_a_manifest_that_is_gone_is_not_taken_for_a_run_without_steps(copied, command, capsys):
    (copied / "metrics" / "manifest.json").unlink()
    text = said(capsys, [command, str(copied)], code=2)
    assert (
        "manifest.json is missing, and 1 files of steps lie beside it" in text or "files of steps lie beside it" in text
    )
    assert "Wait for it" not in text
