"""Processes that live exactly as long as their owner, each with all its descendants.

Every daemon is the first process of a PID namespace of its own, and is killed by the kernel when the process that
started it ends, however that one ends: first by the owner's death signal (setpriv), then by the namespace's (unshare
--kill-child), and everything else in the namespace with it. So nothing is looked for by name, and nothing survives.

The death signal follows the *thread* that starts a daemon: start daemons from one that lives as long as they should.
"""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_POLL_S = 0.1


class DaemonError(RuntimeError):
    """A daemon ended by itself, or was not ready in time."""


class Process(NamedTuple):
    """One process, by this machine's pid, whatever its pid in its own namespace."""

    pid: int
    command: str


class Daemon:
    """A program in its own PID namespace, its output in a log file."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    def require_alive(self) -> None:
        """Raise DaemonError with the end of the log if the daemon has ended."""
        if (code := self._process.poll()) is not None:
            raise DaemonError(
                f"{self.name} ended with code {code}. It should run until the cluster stops. Its log ends with:\n"
                f"{self._log_tail()}"
            )

    @property
    def has_crashed(self) -> bool:
        """Whether it ended by SIGABRT or SIGSEGV, which a shell before it gives as an exit code."""
        return self._process.poll() in {128 + signal.SIGABRT, 128 + signal.SIGSEGV}

    def kill(self) -> None:
        """End the daemon and every process of its namespace, and wait until all are gone.

        The namespace's first process ends when the others have, and the one that waits for it after that.
        """
        if self._process.poll() is None:
            first = _children(self._process.pid)
            for pid in first or [self._process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def descendants(self) -> list[Process]:
        """All processes of the namespace but its first, parents before their children."""
        return [process for first in _children(self._process.pid) for process in _descendants(first)]

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-2000:] or "(an empty log)"


def start_daemon(
    name: str, command: Sequence[str], *, environment: Mapping[str, str], log: Path, own_host: bool = False
) -> Daemon:
    """Start `command`, in a namespace with a host name of its own if it is to have its `own_host`."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            bound(command, own_host=own_host),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=log.parent,  # where a slurmd that crashes leaves a core
            start_new_session=True,
        )
    return Daemon(name, process, log)


def bound(command: Sequence[str], *, own_host: bool = False) -> list[str]:
    """Return the command that runs `command` so that all it starts ends with it, and it with the thread that starts it.

    It has a /proc of its own, where it is process 1, and its mounts are its own.
    """
    namespaces = ["--pid", "--mount", "--mount-proc", "--propagation", "private", *(["--uts"] if own_host else [])]
    return ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child=KILL", *namespaces, "--", *command]


class FolderKeeper:
    """Removes a folder on request, or when this process ends."""

    _SCRIPT = 'cat >/dev/null; for attempt in $(seq 100); do rm -rf "$0" && exit 0; sleep 0.1; done; exit 1'
    """Waits for the end of its input. Processes that are just being killed may still write, hence the attempts."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            ["sh", "-c", self._SCRIPT, str(folder)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )

    def remove(self) -> None:
        """Remove the folder and wait until it is gone."""
        self._process.communicate()


def wait_until(is_true: Callable[[], bool], *, what: str, timeout_s: float, daemons: Sequence[Daemon] = ()) -> None:
    """Wait for `is_true`, raising DaemonError when one of `daemons` ends before, or when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        for daemon in daemons:
            daemon.require_alive()
        if time.monotonic() > deadline:
            raise DaemonError(f"{what} did not happen within {timeout_s:g} s. See the logs beside slurm.conf.")
        time.sleep(_POLL_S)


def _descendants(pid: int) -> list[Process]:
    """List all descendants of `pid`. The first process of a namespace adopts its orphans, so none is missed."""
    found: list[Process] = []
    for child in _children(pid):
        if command := _command(child):
            found.append(Process(child, command))
        found += _descendants(child)
    return found


def _children(pid: int) -> list[int]:
    """List the children of all threads of `pid`; none when it has ended."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    return [int(child) for thread in threads for child in _read(thread / "children").split()]


def _command(pid: int) -> str:
    """Return the command line, empty for a zombie."""
    return _read(Path(f"/proc/{pid}/cmdline")).replace("\0", " ").strip()


def _read(file: Path) -> str:
    """Return a file of /proc, empty when the process is gone."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
