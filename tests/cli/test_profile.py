"""`rollpacker profile` refuses what could not end well, before anything starts."""

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.cli.profile import _show
from rollpacker.config.words import replaced
from rollpacker.metrics.profiles import ENGINE_MEASUREMENTS
from tests.cli.inputs import tree_of
from tests.sim.test_profile import profile

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
    "too few slots": (_nothing, ["out=p.json", "engine.max_num_seqs=2"], ["engine.max_num_seqs=2", "=3 or more"]),
    "too short sequences": (
        _nothing,
        ["out=p.json", "data.max_prompt_tokens=16", "rollout.max_response_tokens=10"],
        ["rollout.max_response_tokens=10", "at least 27", "Set rollout.max_response_tokens=11"],
    ),
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


def test_a_slurm_step_of_several_nodes_is_refused(workdir, capsys, monkeypatch):
    step = {"JOB_ID": "1", "STEP_NUM_TASKS": "2", "STEP_NODELIST": "n[0-1]", "PROCID": "0", "CPUS_ON_NODE": "8"}
    for name, value in (step | {"JOB_NODELIST": "n[0-1]"}).items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n0")
    assert main(["profile", *RUN, "out=p.json"]) == 2
    message = capsys.readouterr().err
    assert "`rollpacker profile` in a Slurm step of 2 nodes." in message
    assert "srun --nodes=1" in message


def test_what_was_measured_of_several_degrees_is_shown_of_each(tmp_path, capsys):
    one = profile()
    doubled = [replace(each, tensor_parallel=2) for each in one.points if each.measurement in ENGINE_MEASUREMENTS]
    for measured in (one, replace(one, points=(*one.points, *doubled))):
        _show(measured, tmp_path / "p.json")
        text = capsys.readouterr().out
        lines = text.splitlines()
        begins = [line.split()[2:-8] for line in lines if line.lstrip().startswith("decode: sequences,")]
        assert begins == ([["cached"]] if measured == one else [["1"], ["2"]])
        assert ("KV cache, TP 2 " in text) == (" TP " in lines[2]) == (measured != one)


def test_the_degrees_whose_endings_were_not_measured_are_named(tmp_path, capsys):
    one = profile()
    doubled = [replace(each, tensor_parallel=2) for each in one.points if each.measurement in {"decode", "prefill"}]
    _show(replace(one, points=(*one.points, *doubled)), tmp_path / "p.json")
    assert "With tensor parallelism 2 no passes were measured" in " ".join(capsys.readouterr().out.split())


def test_help_says_what_it_takes_and_what_for(capsys):
    assert main(["profile", "--help"]) == 0
    text = capsys.readouterr().out
    assert "out=FILE" in text
    assert "hardware.profile" in text
