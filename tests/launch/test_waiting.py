"""Waiting for jobs with a squeue and a sacct of our own; a real Slurm is in tests/slurm/test_launcher.py."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import WorldError
from rollpacker.launch.points import Point
from rollpacker.launch.submissions import write_submission
from rollpacker.launch.waiting import wait_for
from rollpacker.runtime.run.status import write_status
from rollpacker.terminal import Terminal
from tests.launch.commands import install_command
from tests.launch.runs import a_status, a_submission


def test_the_wait_ends_with_the_last_job_also_while_accounting_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    points = []
    for number, state in enumerate(("finished", "running")):
        run_dir = tmp_path / str(number)
        write_submission(run_dir, a_submission(str(19 + number), folder=tmp_path))
        write_status(run_dir, a_status(state))
        config = compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={run_dir}"])
        points.append(Point(number=number, name="", config=config))
    squeue = """if mkdir once; then echo '20|20|RUNNING|None|0|2|gpu[01-02]|1795266000|0|'; fi 2>/dev/null"""
    install_command(tmp_path, "squeue", squeue, monkeypatch)
    install_command(tmp_path, "sacct", "echo 'sacct: error: Connection refused' >&2; exit 1", monkeypatch)
    monkeypatch.chdir(tmp_path)

    with pytest.raises(WorldError) as error:
        wait_for(points, 0.01, Terminal(soft_wrap=True))

    assert "1 of 2 points did not finish.\npoint 1 died (job 20, UNKNOWN)" in error.value.problem
    said = capsys.readouterr().out
    assert "`sacct` failed: sacct: error: Connection refused" in said
    assert "point 1: running on gpu[01-02]" in said


def test_a_run_whose_folder_cannot_be_reached_for_a_while_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir, there = tmp_path / "run", tmp_path / "there"
    write_submission(there, a_submission("20", folder=tmp_path))
    write_status(there, a_status("finished"))
    run_dir.symlink_to(run_dir)  # which no file system follows

    def mend(_: float) -> None:
        if there.exists():  # the first time
            run_dir.unlink()
            there.rename(run_dir)

    install_command(tmp_path, "squeue", "true", monkeypatch)
    install_command(tmp_path, "sacct", "exit 1", monkeypatch)
    monkeypatch.setattr(time, "sleep", mend)
    config = compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={run_dir}"])

    wait_for([Point(number=0, name="", config=config)], 0.01, Terminal(soft_wrap=True))

    assert not there.exists()


def test_a_run_whose_folder_is_removed_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission("20", folder=tmp_path))
    config = compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={run_dir}"])
    row = "20|20|RUNNING|None|0|2|gpu[01-02]|1795266000|0|"
    install_command(
        tmp_path, "squeue", f"if mkdir once; then exit 1; fi 2>/dev/null; rm -r run; echo '{row}'", monkeypatch
    )
    monkeypatch.chdir(tmp_path)

    with pytest.raises(WorldError, match=r"\npoint 0 unknown \(no job.json in .*run\)"):
        wait_for([Point(number=0, name="", config=config)], 0.01, Terminal(soft_wrap=True))
