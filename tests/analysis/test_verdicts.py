"""The record of the claims that hold: what is lost against it, and what a new one keeps of the old."""

import csv
import subprocess
import sys

import pytest

from rollpacker.analysis import verdicts
from rollpacker.analysis.exhibits import EXHIBITS
from rollpacker.analysis.numbers import Claim, Numbers, Place, Value
from rollpacker.analysis.runs import Runs, read_runs
from rollpacker.cli.main import main
from tests.analysis.written_runs import write_run


@pytest.fixture
def run(tmp_path):
    [run], _ = read_runs([write_run(tmp_path / "run", "tail", [1.0], modelled=True)])
    return run


@pytest.fixture
def record(tmp_path):
    return tmp_path / "verdicts.csv"


def claim(run, text, ours):
    """That something is twice as fast; without `ours` no run says so."""
    point = Place(panel="", x="", unit="x").ours([Value(run, ours)] if ours else [])
    return Claim(text=text, paper=2.0, ours=point, unit="x", neutral=1.0)


def of(*claims):
    return Numbers(points=[], claims=claims)


def test_a_claim_that_used_to_hold_and_no_longer_does_is_lost(run, record):
    def numbers(speedup):
        return {"table2": of(claim(run, "tail", speedup))}

    assert verdicts.lost_claims(numbers(2.0), record) == []
    verdicts.accept(numbers(2.0), record)
    assert verdicts.lost_claims(numbers(2.1), record) == []
    assert verdicts.lost_claims(numbers(1.5), record) == ["table2, tail: was reproduced, is direction only"]


def test_a_claim_that_stood_and_has_no_run_now_is_unchecked(run, record):
    verdicts.accept({"a": of(claim(run, "x", 2.0), claim(run, "y", 0.5)), "b": of(claim(run, "z", 1.5))}, record)
    assert verdicts.unchecked_claims({"a": of(claim(run, "x", 0.1), claim(run, "y", None))}, record) == [
        "b, z: was direction only, has no run"
    ]
    assert "a, x: was reproduced, has no run" in verdicts.unchecked_claims({"a": of(claim(run, "x", None))}, record)


def test_to_accept_what_holds_keeps_the_rows_of_exhibits_without_runs(run, record):
    claims = {name: of(claim(run, name, 2.0)) for name in "abc"}
    verdicts.accept(claims, record)
    before = record.read_text()
    verdicts.accept({"a": claims["a"], "b": of()}, record)
    assert record.read_text() == before


def test_to_accept_what_holds_keeps_the_claims_of_an_exhibit_that_have_no_run_and_drops_those_it_no_longer_makes(
    run, record
):
    verdicts.accept({"a": of(claim(run, "x", 2.0), claim(run, "y", 2.0), claim(run, "old", 2.0))}, record)
    verdicts.accept({"a": of(claim(run, "x", None), claim(run, "y", 1.5))}, record)
    rows = [line.split(",") for line in record.read_text().splitlines()[1:]]
    assert [(row[1], row[3]) for row in rows] == [("x", "2"), ("y", "1.5")]


def test_every_claim_of_the_record_is_one_that_an_exhibit_makes():
    made = {
        (exhibit.name, claim.text)
        for exhibit in EXHIBITS.values()
        for claim in exhibit.numbers(Runs(runs=[], setup=exhibit.setups[0])).claims
    }
    with verdicts.RECORD.open(encoding="utf-8", newline="") as lines:
        assert {(row["exhibit"], row["claim"]) for row in csv.DictReader(lines)} <= made


def test_a_part_of_the_runs_is_checked_with_a_count_of_the_claims_that_have_none(tmp_path, run, capsys):
    assert main(["analysis", "verdicts", f"runs={tmp_path}"]) == 0
    recorded = len(verdicts.unchecked_claims({}))
    said = f"incomplete no run here for {recorded} claims that stood in the record; backend=sim models what is missing"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize("words", [["scale=8gpus"], ["scale=8gpus", "backend=sim"], ["scale=tiny"], ["scale=walks"]])
def test_runs_of_a_size_that_the_record_is_not_of_are_not_held_to_lack_its_claims(
    words, tmp_path, run, capsys, monkeypatch
):
    monkeypatch.setattr("rollpacker.analysis.command.make_missing_runs", lambda *_, **__: {})
    assert main(["analysis", "verdicts", *words, f"runs={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    assert "incomplete" not in printed
    assert ("there is nothing to compare" in printed) == ("scale=walks" not in words)  # which has claims of its own


def test_where_a_run_failed_that_could_be_modelled_nobody_is_told_to_model_it(tmp_path, run, capsys, monkeypatch):
    failed = {"table1": ["runs/x failed: no memory"]}
    monkeypatch.setattr("rollpacker.analysis.command.make_missing_runs", lambda *_, **__: failed)
    monkeypatch.setattr("rollpacker.analysis.command.unchecked_claims", lambda _: ["table1: a claim"])
    assert main(["analysis", "verdicts", "backend=sim", f"runs={tmp_path}"]) == 1
    out, err = capsys.readouterr()
    assert "no run here for 1 claim that stood in the record.\n" in out
    assert "1 run failed, and what needs a failed run is incomplete.\n" in err


@pytest.mark.parametrize("scale", [[], ["scale=paper"]])
def test_where_every_run_was_modelled_a_claim_without_one_is_lost(scale, tmp_path, run, capsys, monkeypatch):
    monkeypatch.setattr("rollpacker.analysis.command.make_missing_runs", lambda *_, **__: {})
    assert main(["analysis", "verdicts", "backend=sim", *scale, f"runs={tmp_path}"]) == 1
    out, err = capsys.readouterr()
    first = verdicts.unchecked_claims({})[0]
    assert f"lost {first}" in out
    assert f"{len(verdicts.unchecked_claims({}))} claims lost against the record" in err


def test_lost_claims_are_the_exit_code_though_the_reader_leaves(tmp_path):
    for system in ("verl", "tail"):
        write_run(tmp_path / system, system, [4.0], modelled=True)
    line = f"{sys.executable} -m rollpacker.cli analysis verdicts runs={tmp_path} | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert "lost against the record" in done.stderr
