"""`rollpacker trace` and `rollpacker report` as a user meets them: what they write, and what they refuse."""

import gzip
import json

import pytest

from rollpacker.cli.main import main
from tests.timeline.runs import modelled_run


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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "was given no run"),
        (["a", "b"], "was given a b"),
        (["missing"], "missing does not exist"),
        (["missing", "stesp=1"], "Write steps=..."),
        (["missing", "steps=3:2"], "steps=3:2. It is one step from 0, or FIRST:END"),
        (["EMPTY"], "is not a run: it has no metrics/manifest.json"),
        (["UNFINISHED"], "is a run of which no step is finished yet"),
        (["PARENT"], "Give one of the runs in it, such as"),
        (["RUN", "steps=7:9"], "has none of the steps 7 to 8 It has the steps 0 to 1"),
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


def test_a_run_of_a_newer_version_is_refused(run_dir, tmp_path, capsys):
    manifest = tmp_path / "metrics" / "manifest.json"
    manifest.parent.mkdir()
    plain = json.loads((run_dir / "metrics" / "manifest.json").read_text())
    manifest.write_text(json.dumps(plain | {"schema_version": 99}))
    assert "schema version 99" in said(capsys, ["trace", str(tmp_path)], code=2)


def test_a_report_lies_in_the_run_unless_told_otherwise(run_dir, tmp_path, capsys):
    assert "2 steps (modelled)" in said(capsys, ["report", str(run_dir)])
    assert (run_dir / "report.html").read_text().startswith("<!doctype html>")
    said(capsys, ["report", str(run_dir), str(run_dir), "step=1", f"out={tmp_path / 'x.html'}"])
    assert "step 1, a " in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b", "c"], "It takes the run.dir of one run, or of two to compare"),
        (["RUN", "step=x"], "step=x. It is the number of one step, from 0."),
        (["RUN", "step=7"], "has none of the steps 7 to 7 It has the steps 0 to 1"),
        (["RUN", "missing"], "missing does not exist"),
        (["RUN", "stpe=1"], "Write step=..."),
    ],
)
def test_a_report_of_what_is_not_there_is_refused_in_three_parts(run_dir, capsys, words, message):
    assert message in said(capsys, ["report", *(str(run_dir) if word == "RUN" else word for word in words)], code=2)
