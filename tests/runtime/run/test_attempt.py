"""A run's folder belongs to one process, or the run does not start."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError, RollpackerError, StorageFailed
from rollpacker.runtime.run.attempt import locked_folder
from tests.runtime.allocations import enter_step


@pytest.fixture(autouse=True)
def when_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Nobody sleeps, but does what a test says."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    return lambda act: monkeypatch.setattr(time, "sleep", lambda _: act())


@pytest.fixture
def when_sent(
    when_waiting: Callable[[Callable[[], None]], None], monkeypatch: pytest.MonkeyPatch
) -> Callable[[signal.Signals], None]:
    """A signal comes in the long wait, not in the moment before it."""
    monkeypatch.setattr("rollpacker.runtime.run.attempt._MOMENT_S", 0.0)
    return lambda number: when_waiting(lambda: signal.raise_signal(number))


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    enter_step(monkeypatch)


def refusal(run_dir: Path) -> RollpackerError:
    with pytest.raises(RollpackerError) as raised, locked_folder(run_dir):
        pytest.fail("the run begins")
    return raised.value


def test_a_second_run_in_the_same_folder_is_refused_while_the_first_one_runs(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "run"):
        holder = f"(process {os.getpid()} on {socket.gethostname()})"
        problem = f"Another process is running in run.dir={tmp_path / 'run'} {holder}."
        assert refusal(tmp_path / "run").problem == problem
    with locked_folder(tmp_path / "run"):
        pass


def test_a_look_at_the_lock_by_another_command_does_not_end_a_run_that_begins(
    tmp_path: Path, when_waiting: Callable[[Callable[[], None]], None]
) -> None:
    with (tmp_path / "lock").open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        when_waiting(look.close)
        with locked_folder(tmp_path):
            pass


@pytest.mark.usefixtures("in_job")
def test_in_a_job_the_lock_of_a_node_that_died_is_waited_for(
    tmp_path: Path, when_waiting: Callable[[Callable[[], None]], None], capsys: pytest.CaptureFixture[str]
) -> None:
    polls = iter(range(200))
    with (tmp_path / "lock").open("w") as lease:
        fcntl.flock(lease, fcntl.LOCK_EX)
        when_waiting(lambda: lease.close() if next(polls) == 181 else None)  # two a second
        with locked_folder(tmp_path):
            pass
    assert capsys.readouterr().err == f"Another process holds the lock of {tmp_path}: waiting for it, 120 s at most.\n"


@pytest.mark.usefixtures("in_job")
def test_in_a_job_a_run_that_lives_is_not_waited_for_without_end(tmp_path: Path) -> None:
    with locked_folder(tmp_path):
        assert "Another process is running" in refusal(tmp_path).problem


@pytest.mark.usefixtures("in_job")
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_person_ends_the_wait_although_an_event_loop_has_taken_the_signal(
    tmp_path: Path, when_sent: Callable[[signal.Signals], None], number: signal.Signals, exit_code: int
) -> None:
    heard: list[int] = []
    before = signal.signal(number, lambda number, _frame: heard.append(number))
    try:
        with locked_folder(tmp_path):
            when_sent(number)
            assert refusal(tmp_path).exit_code == exit_code
        assert heard == []
        signal.raise_signal(number)
        assert heard == [number]
    finally:
        signal.signal(number, before)


@pytest.mark.usefixtures("in_job")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_is_ignored_does_not_end_the_wait(
    tmp_path: Path, when_sent: Callable[[signal.Signals], None], number: signal.Signals
) -> None:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        with locked_folder(tmp_path):
            when_sent(number)
            assert "Another process is running" in refusal(tmp_path).problem
    finally:
        signal.signal(number, before)


def test_a_lock_that_is_given_back_in_the_last_moment_is_taken(
    tmp_path: Path, when_waiting: Callable[[Callable[[], None]], None]
) -> None:
    sleeps = iter(range(2))
    with (tmp_path / "lock").open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        when_waiting(lambda: look.close() if next(sleeps) == 1 else None)  # the second of two in a second
        with locked_folder(tmp_path):
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
