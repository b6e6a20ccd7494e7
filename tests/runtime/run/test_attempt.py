"""A run's folder belongs to one process, or the run does not start."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError, RollpackerError, StorageFailed
from rollpacker.runtime.run.attempt import locked_folder


def refusal(run_dir: Path) -> RollpackerError:
    with pytest.raises(RollpackerError) as raised, locked_folder(run_dir):
        pytest.fail("the run begins")
    return raised.value


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run"):
        assert "Another process is running" in refusal(tmp_path / "run").problem
    with locked_folder(tmp_path / "run"):
        pass


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_what_to_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    fail_to_lock(monkeypatch, code)
    error = refusal(tmp_path)
    assert isinstance(error, ConfigError)
    assert error.problem == f"run.dir={tmp_path} cannot be locked: {os.strerror(code)}."
    assert "Lustre: mount option flock" in error.remedy


def test_a_disk_that_fails_while_the_folder_is_locked_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_lock(monkeypatch, errno.EIO)
    error = refusal(tmp_path)
    assert isinstance(error, StorageFailed)
    assert str(tmp_path) in error.problem


def fail_to_lock(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def flock(_file: object, _operation: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
