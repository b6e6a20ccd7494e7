from __future__ import annotations

import fcntl
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.launch.doctor.files import Trial, check_files, clock_skew, try_files
from rollpacker.launch.file_systems import FileSystem

WELL = Trial(
    folder=Path("/scratch/runs"),
    file_system=FileSystem(kind="lustre", mount_point="/scratch"),
    failures=(),
    num_free_bytes=10**13,
    skew_s=0.0,
)


def test_a_good_folder_has_no_finding_but_ok() -> None:
    assert {finding.level for finding in check_files(WELL, must_be_shared=True)} == {"ok"}


@pytest.mark.parametrize(
    ("trial", "subject", "level", "words"),
    [
        (
            replace(WELL, file_system=FileSystem(kind="ext4", mount_point="/")),
            "run.dir",
            "problem",
            "ext4 at /, which only this machine sees",
        ),
        (
            replace(WELL, file_system=FileSystem(kind="overlay", mount_point="/")),
            "run.dir",
            "warning",
            "may not see",
        ),
        (replace(WELL, failures=("locking (Function not implemented)",)), "files", "problem", "locking"),
        (replace(WELL, failures=("making a folder (Permission denied)",)), "files", "problem", "Permission denied"),
        (replace(WELL, num_free_bytes=10**9), "disk", "warning", "only 1 GB"),
        (replace(WELL, skew_s=-90.0), "clock", "warning", "90 s behind"),
    ],
)
def test_each_fault_of_a_folder_is_found_and_nothing_else(trial: Trial, subject: str, level: str, words: str) -> None:
    (found,) = (finding for finding in check_files(trial, must_be_shared=True) if finding.level != "ok")

    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_a_run_of_one_machine_may_write_where_only_that_machine_sees_it() -> None:
    local = replace(WELL, file_system=FileSystem(kind="ext4", mount_point="/"))

    assert {finding.level for finding in check_files(local, must_be_shared=False)} == {"ok"}


def test_a_trial_leaves_nothing_behind_and_makes_no_folder(tmp_path: Path) -> None:
    trial = try_files(tmp_path / "runs" / "x")

    assert (trial.folder, trial.failures, trial.skew_s) == (tmp_path, (), 0.0)
    assert trial.num_free_bytes > 0
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    assert try_files(tmp_path).failures == ("locking (two processes got it at once)",)
    assert list(tmp_path.iterdir()) == []


def test_a_file_from_the_future_shows_the_servers_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write_as_a_server_that_is_ahead(file: Path, data: bytes) -> None:
        file.touch()
        os.utime(file, (time.time() + 100, time.time() + 100))

    monkeypatch.setattr(Path, "write_bytes", write_as_a_server_that_is_ahead)

    assert clock_skew(tmp_path) == pytest.approx(100, abs=5)
