"""Which processes belong to a run, and which of them is what.

No process is known by its title. vLLM's setproctitle cannot set one where the first variable of the environment was
changed before, and Ray hands the variables over in an order of chance; and a title that is set may be written over the
environment. So a run's processes are those that carry its mark, their descendants, and whatever once was one of them,
and an actor is the process that its own log names.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

MARK = "ROLLPACKER_TEST_RUN"
"""Environment variable by which a test knows what its run has started."""

_END_LIMIT_S = 60.0
"""Within which processes that were killed or told to end have ended, on a busy machine."""

_FREEZER = Path(__file__).with_name("freezer")


class Process(NamedTuple):
    """As /proc shows it."""

    own_pid: int
    """By which it knows itself; on a node of the mini cluster another one than that by which all others know it."""
    parent: int
    birth: str
    """In clock ticks since the system's start: with the pid, what no other process has."""
    command: str
    environment: bytes

    def variable(self, name: str) -> str:
        """Of its environment as it was started with; empty where it has none."""
        words = self.environment.decode(errors="replace").split("\0")
        return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def all_processes() -> dict[int, Process]:
    """By pid, everything that is alive."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            # after the parenthesised name: the state, the parent, and seventeen fields later the birth
            fields = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
            pids = re.search(r"^NSpid:(.*)$", (folder / "status").read_text(errors="replace"), re.MULTILINE)
        except OSError:  # it has just ended
            continue
        if fields[0] not in "ZX" and pids:
            own_pid = int(pids[1].split()[-1])
            found[int(folder.name)] = Process(own_pid, int(fields[1]), fields[19], command, environment)
    return found


class ProcessesOfRun:
    """Everything that carries a mark or comes from what does, also if it has changed its environment or its parent."""

    def __init__(self, mark: str) -> None:
        self._words = f"{MARK}={mark}\0".encode()
        self._births: dict[int, str] = {}
        """Of all that were seen so far."""

    def alive(self) -> dict[int, Process]:
        """By pid, those that are."""
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

    def assert_all_end(self, timeout_s: float = 60) -> None:
        """Within this time."""
        deadline = time.monotonic() + timeout_s
        while left := self.alive():
            assert time.monotonic() < deadline, f"left behind: {[(pid, each.command) for pid, each in left.items()]}"
            time.sleep(0.2)  # a look takes 20 ms: it reads of every process

    def send(self, number: int) -> None:
        """Send a signal to all of them; one may end while the others get theirs."""
        for pid in self.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def workers_of(process: subprocess.Popen[str], num_workers: int) -> list[int]:
    """Pids of the processes that a command's multiprocessing has spawned, once there are as many."""
    while True:
        children = {pid: each for pid, each in all_processes().items() if each.parent == process.pid}
        workers = [pid for pid, each in children.items() if "spawn_main" in each.command]
        if len(workers) == num_workers:
            return workers
        assert process.poll() is None, f"it ended with code {process.returncode} and {len(workers)} workers"
        time.sleep(0.05)


def freezing_environment(file: Path, place: str) -> dict[str, str]:
    """Variables of a run whose processes stop at a place, as `freezer` says, as long as a file is there."""
    path = f"{_FREEZER}:{os.environ.get('PYTHONPATH', '')}"
    return {"PYTHONPATH": path, "FREEZE_FILE": str(file), "FREEZE_AT": place}


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; one that has ended is not."""
    return _state_of(pid) == "T"


def is_alive(pid: int) -> bool:
    """Whether a process runs or is stopped; a zombie has ended."""
    return _state_of(pid) not in {"", "Z"}


def _state_of(pid: int) -> str:
    """As /proc gives it; empty of a process that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


@contextmanager
def watched(*pids: int) -> Iterator[Callable[[], None]]:
    """Give a function that waits until all these processes have ended; all live when this is called."""
    files = [os.pidfd_open(pid) for pid in pids]

    def wait_for_the_end() -> None:
        for file in files:
            assert select.select([file], [], [], _END_LIMIT_S)[0], "a process is still there"

    try:
        yield wait_for_the_end
    finally:
        for file in files:
            os.close(file)


class NamedProcess(NamedTuple):
    """As an actor names its own."""

    node: str
    own_pid: int


def named_in_logs(run_dir: Path) -> dict[str, NamedProcess]:
    """Of the last attempt, every actor that has begun to write its log, by the actor's name."""
    attempts = sorted((run_dir / "logs").glob("attempt-*"))
    named = {
        log.stem: re.search(r"^Process (\d+) on ([^\s,]+)", log.read_text(errors="replace"), re.MULTILINE)
        for log in (attempts[-1].glob("*.log") if attempts else ())
    }
    return {name: NamedProcess(found[2], int(found[1])) for name, found in named.items() if found}


def engines_of(run_dir: Path, processes: Mapping[int, Process]) -> dict[int, Process]:
    """Those of a Slurm job's processes that are engines by the logs of its run."""
    engines = {process for name, process in named_in_logs(run_dir).items() if name.startswith("engine-")}
    return {
        pid: process
        for pid, process in processes.items()
        if NamedProcess(process.variable("SLURMD_NODENAME"), process.own_pid) in engines
    }
