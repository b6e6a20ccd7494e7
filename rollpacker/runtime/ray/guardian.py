"""The process that ends a Ray cluster when its run ends, however the run ends.

Run as a script, by path, with the standard library only:

    python guardian.py TEMP_DIR COMMAND [ARG ...]

It starts COMMAND (a `ray start --block`) in a session of its own and waits for the end of its standard input, whose
other end only the run holds. A pipe closes with its owner, so success, an error, Ctrl-C and kill -9 of the run all
look the same here: every process of the session is killed, by pid, and TEMP_DIR is removed. Ray's workers create
process groups of their own but stay in the session (measured with Ray 2.60), so nothing is ever killed by name and
another Ray on the machine is never touched.

Slurm sends its signals to every process of a job step, and Ray would die of them before the run has written its
checkpoint. So they are blocked here, a mask that every process of the session inherits. Should the guardian itself
be killed, the system kills COMMAND, and Ray's daemons end with it.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

_SLURM_SIGNALS = (signal.SIGTERM, signal.SIGURG, signal.SIGUSR1, signal.SIGUSR2)
"""Those that it sends at preemption and before a time limit."""
_PR_SET_PDEATHSIG = 1
"""See prctl(2)."""
_KILL_ROUNDS = 50
"""A process that forks meanwhile is killed in the next round."""
_KILL_PAUSE_S = 0.05


def processes_of_session(session: int) -> list[int]:
    """Pids of all processes in a session, zombies left out."""
    pids = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # Fields after the parenthesised name: state, parent, process group, session, ...
            state, _, _, process_session = stat.read_bytes().rsplit(b")", 1)[1].split()[:4]  # a name may be no UTF-8
        except OSError:
            continue  # it has just ended
        if int(process_session) == session and state != b"Z":
            pids.append(int(stat.parent.name))
    return pids


def kill_session(session: int) -> None:
    """Kill every process of a session."""
    for _ in range(_KILL_ROUNDS):
        pids = processes_of_session(session)
        if not pids:
            return
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(_KILL_PAUSE_S)


def main() -> int:
    """Guard one command; returns its exit status if it ended first, else 0."""
    temp_dir, command = Path(sys.argv[1]), sys.argv[2:]
    signal.pthread_sigmask(signal.SIG_BLOCK, _SLURM_SIGNALS)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _only_the_pipe_decides)  # unlike SIG_IGN, a handler is not inherited by the child
    child = subprocess.Popen(  # noqa: S603  (our own command)
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=_die_with_the_guardian,  # noqa: PLW1509  (this process has one thread)
    )
    status = 0
    exit_fd = os.pidfd_open(child.pid)
    readable, _, _ = select.select([sys.stdin, exit_fd], [], [])
    if exit_fd in readable:
        status = child.wait()
    kill_session(child.pid)
    child.wait()
    shutil.rmtree(temp_dir, ignore_errors=True)
    return status


def _die_with_the_guardian() -> None:
    """Runs in the child before its command."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _only_the_pipe_decides(_number: int, _frame: FrameType | None) -> None:
    """Ignore a signal."""


if __name__ == "__main__":
    sys.exit(main())
