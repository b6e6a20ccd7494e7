"""The lock of a file is of one process, which the file names."""

import errno
import fcntl
import os
import resource
import socket
import subprocess
import sys

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.runtime.job.file_lock import FileLock, held_lock, is_locked

HOLDER = """
import sys
from pathlib import Path
from rollpacker.runtime.job.file_lock import FileLock

lock = FileLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


def refusal(holder: str) -> ConfigError:
    return ConfigError(f"It is taken{holder}.", "One process at a time has it.", "Wait for it.")


def test_a_refused_process_is_told_which_one_holds_the_lock_until_that_one_is_killed(tmp_path):
    file = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER, file]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        with pytest.raises(ConfigError) as raised, held_lock(file, refusal):
            pytest.fail("two processes hold it")
        assert raised.value.problem == f"It is taken (process {other.pid} on {socket.gethostname()})."
        assert is_locked(file)
        other.kill()
    assert not is_locked(file)
    with held_lock(file, refusal), FileLock(file) as look:
        assert look.holder == f" (process {os.getpid()} on {socket.gethostname()})"


def test_a_lock_that_names_nobody_is_refused_without_a_name(tmp_path):
    with (tmp_path / "lock").open("w") as nameless:
        fcntl.flock(nameless, fcntl.LOCK_EX)
        with pytest.raises(ConfigError) as raised, held_lock(tmp_path / "lock", refusal):
            pytest.fail("two processes hold it")
    assert raised.value.problem == "It is taken."


def test_on_a_full_disk_the_lock_holds_without_a_name(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with held_lock(tmp_path / "lock", refusal):
            assert is_locked(tmp_path / "lock")
            assert FileLock(tmp_path / "lock").holder == ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_where_files_have_no_locks_processes_are_not_kept_apart(tmp_path, monkeypatch):
    def flock(_file, _operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with held_lock(tmp_path / "lock", refusal), held_lock(tmp_path / "lock", refusal):
        assert is_locked(tmp_path / "lock") is None
