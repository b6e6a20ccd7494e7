"""Which processes belong to a run, and which of them is what.

No process is known by its title. vLLM's setproctitle cannot set one where the first variable of the environment was
changed before, and Ray hands the variables over in an order of chance; and a title that is set may be written over the
environment. So a run's processes are those that carry its mark, their descendants, and whatever once was one of them,
and an actor is the process that its own log names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

MARK = "ROLLPACKER_TEST_RUN"
"""Environment variable by which a test knows what its run has started."""


class Process(NamedTuple):
    """As /proc shows it."""

    parent: int
    birth: str
    """In clock ticks since the system's start: with the pid, what no other process has."""
    command: str
    environment: bytes


def all_processes() -> dict[int, Process]:
    """By pid, everything that is alive."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            # after the parenthesised name: the state, the parent, and seventeen fields later the birth
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if fields[0] not in "ZX":
            found[int(folder.name)] = Process(int(fields[1]), fields[19], command, environment)
    return found


class ProcessesOfRun:
    """Everything that carries a mark or comes from what does, also if it has changed its environment or its parent."""

    def __init__(self, mark: str) -> None:
        self._words = f"{MARK}={mark}\0".encode()
        self._births: dict[int, str] = {}
        """Of all that were seen so far."""

    def alive(self) -> dict[int, Process]:
        everything = all_processes()
        own = {
            pid
            for pid, process in everything.items()
            if self._words in process.environment + b"\0" or self._births.get(pid) == process.birth
        }
        while children := {pid for pid, process in everything.items() if process.parent in own and pid not in own}:
            own |= children
        self._births |= {pid: everything[pid].birth for pid in own}
        return {pid: everything[pid] for pid in sorted(own)}


def pids_of_actors(run_dir: Path) -> dict[str, int]:
    """Of the last attempt, every actor that has begun to write its log, by its name."""
    attempts = sorted((run_dir / "logs").glob("attempt-*"))
    named = {
        log.stem: re.search(r"^Process (\d+) on ", log.read_text(errors="replace"), re.MULTILINE)
        for log in (attempts[-1].glob("*.log") if attempts else ())
    }
    return {name: int(found[1]) for name, found in named.items() if found}
