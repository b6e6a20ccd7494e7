"""Ends the process of an actor and what it has started, on its node; the driver runs it there as a task.

Ray makes each of its workers the leader of a process group, in the session of the node's Ray (measured with Ray 2.60).
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_PAUSE_S = 0.05
"""Between two rounds: a process that was started meanwhile is killed in the next one."""


def end_process_group(leader: int, timeout_s: float) -> None:
    """Kill all processes of a group in this session, and wait until they have ended, `timeout_s` at most."""
    deadline = time.monotonic() + timeout_s
    while (pids := _processes_of_group(leader)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


def _processes_of_group(leader: int) -> list[int]:
    """Pids, zombies left out, and Python's resource tracker, which ends after the others and removes their files."""
    place, pids = (leader, os.getsid(0)), []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            # Fields after the parenthesised name: state, parent, process group, session, ...
            state, _, group, session = stat.read_bytes().rpartition(b")")[2].split()[:4]
            is_alive = (int(group), int(session)) == place and state not in {b"Z", b"X"}
            if is_alive and b"resource_tracker" not in stat.with_name("cmdline").read_bytes():
                pids.append(int(stat.parent.name))
    return pids
