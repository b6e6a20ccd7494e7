"""Ends vLLM's processes when the process that runs the engine is gone, however it went.

    engine's process  ->  vLLM's EngineCore  ->  one worker per GPU

vLLM's workers notice the death of the EngineCore, but nothing notices that the engine's process was killed: the
EngineCore would wait for requests without end, with the GPU's memory, or while it starts for minutes. So a thread of
each of them looks once per second, from the moment at which the process reads its configuration, after vLLM's import:

* the engine's process is gone: end this one;
* the EngineCore is gone: give vLLM's own way `GRACE_S`, then end this one.

Looking costs a read of /proc. The kernel's own means does not do: a parent-death signal follows the parent's thread,
not its process, and pidfds are younger than the kernels of many clusters. A process is known by its id and the time at
which it started, so that another process that later gets its id is not mistaken for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

OWNER_VARIABLE = "ROLLPACKER_ENGINE_PID"
"""Environment variable that names the engine's process; vLLM's processes inherit it."""

INTERVAL_S = 1.0
"""Between two looks: short against any start of an engine that would need the memory."""

SHUTDOWN_S = 15.0
"""How long they may take to end when they are asked to, before they are killed. They take 2 to 10 s, and the driver
waits for 20 (`backend.deadlines.stop_s`). Those that are killed leave names of empty memory in /dev/shm."""

GRACE_S = 2.0
"""A worker that is not in the middle of a step ends at once."""


def hold_on() -> None:
    """Tie this process's life to its parent's and to that of the engine's process."""
    owner, parent = int(os.environ[OWNER_VARIABLE]), os.getppid()
    births = {pid: _birth(pid) for pid in (owner, parent)}
    threading.Thread(target=_watch, args=(owner, parent, births), name="lifeline", daemon=True).start()


def _watch(owner: int, parent: int, births: dict[int, str | None]) -> None:
    def is_gone(pid: int) -> bool:
        return births[pid] is None or _birth(pid) != births[pid]

    while not is_gone(owner) and not is_gone(parent):
        time.sleep(INTERVAL_S)
    if not is_gone(owner):
        time.sleep(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _birth(pid: int) -> str | None:
    """When a process started, in clock ticks since the system did; None when it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    # Fields after the parenthesised name: the first is the state, the twentieth the start.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else fields[19]
