"""Measures a tree of processes from outside the sandbox, by /proc.

The clock of a test case is the program's own time: the time of its processes on cores, or the wall time less what they
waited for a core, whichever is longer.

    own = max(CPU time of the tree, wall time - time in which a thread was ready to run, and did not)

CPU time alone would let a program sleep without end, and wall time alone would fail correct programs on a busy machine.
Own time grows for both loops and sleepers, and does not grow for a program that only waits for a core. Where the kernel
does not count the waiting (`schedstat`), own time is wall time, which is the longer one.

A case's process stays a zombie until the supervisor has measured it, so that short runs are measured to the end.

The kernel counts a wait when it is over. So while a thread is ready to run, only time on cores is added: either it
runs, which that shows, or it waits, which does not count. When none is ready, the time since the last such moment is
settled: waits in it, of all threads together, count at most as long as it was, and none is carried over.

The tree is followed through `children`, so a process that double-forks or starts a session stays in it: orphans go to
the sandbox's first process. No time is lost with a process that ends, because a sandbox's processes cannot ignore the
end of their children (`system_calls`).

Memory is that of processes: anonymous, shared, swapped out, and page tables. The kernel memory of files and of data in
sockets is added (`KernelMemory`). The size of the file system bounds the contents of files.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from rollpacker.processes.lifetimes import tree_of

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_NANOSECOND_S = 1e-9

_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
"""Lines of /proc/PID/status; private huge pages are refused."""

_FILE_BYTES = 2048
"""Of kernel memory for a file without its contents, and its name: 1.1 kB with a name of 250 bytes (measured)."""

_DEFAULT_SOCKET_BYTES = 212_992
"""Linux's own."""

_PAGE_BYTES = 1 << 12
"""What the kernel gives of the table of sockets at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """At one moment."""

    own_s: float
    """Since `restart`."""
    wall_s: float
    """Since `restart`."""
    memory_bytes: int
    num_tasks: int
    """Processes and threads."""


class Meter:
    """Watches the trees under some processes."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = tuple(pids)
        self.left_out: Collection[int] = ()
        """Processes of the trees that are not counted."""
        self._waited_ns: dict[str, int] = {}
        """By thread, also of those that have ended."""
        self._is_ready = False
        """Whether some thread was ready to run, or ran."""
        self.restart()

    def restart(self) -> None:
        """Begin a case."""
        self._began_s = time.monotonic()
        self._own_s = 0.0
        self._awake_s = 0.0
        """Wall time less waits, up to when that was settled."""
        self._settled_s = self._began_s
        self._cpu_before_s, _, _ = self._look()
        self._waited_before_s = self._waited_s()

    def read(self) -> Usage:
        now_s = time.monotonic()  # before _look: a thread that waits now is then still ready, or its wait is counted
        cpu_s, memory_bytes, num_tasks = self._look()
        if not self._is_ready:
            self._settle(now_s)
        self._own_s = max(self._own_s, cpu_s - self._cpu_before_s, self._awake_s)
        wall_s = now_s - self._began_s
        return Usage(own_s=self._own_s, wall_s=wall_s, memory_bytes=memory_bytes, num_tasks=num_tasks)

    def _settle(self, now_s: float) -> None:
        waited_s = self._waited_s()
        passed_s = now_s - self._settled_s
        self._awake_s += passed_s - min(passed_s, max(0.0, waited_s - self._waited_before_s))
        self._settled_s, self._waited_before_s = now_s, waited_s

    def _waited_s(self) -> float:
        return sum(self._waited_ns.values()) * _NANOSECOND_S

    def _look(self) -> tuple[float, int, int]:
        """Give CPU time, memory and number of tasks; processes that end meanwhile are left out."""
        cpu_s, memory_bytes, num_tasks = 0.0, 0, 0
        self._is_ready = False
        for pid in self._pids:
            for each in tree_of(pid):
                if each in self.left_out:
                    continue
                try:
                    one_cpu_s, one_bytes, one_tasks = self._look_at(each)
                except (OSError, IndexError, ValueError):
                    continue
                cpu_s += one_cpu_s
                memory_bytes += one_bytes
                num_tasks += one_tasks
        return cpu_s, memory_bytes, num_tasks

    def _look_at(self, pid: int) -> tuple[float, int, int]:
        # The name in brackets may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        utime, stime, children_utime, children_stime = (int(field) for field in fields[11:15])
        is_supervisor = pid == os.getpid()  # with `rlimits` it is the root of the tree
        self._is_ready |= fields[0] == b"R" and not is_supervisor
        on_cores_s = self._on_cores_s(pid, has_threads=int(fields[17]) > 1)
        cpu_s = max((utime + stime) * _TICK_S, on_cores_s) + (children_utime + children_stime) * _TICK_S
        return cpu_s, _memory_bytes(pid, is_ended=fields[0] == b"Z"), int(fields[17])

    def _on_cores_s(self, pid: int, *, has_threads: bool) -> float:
        """Of the threads that are there; notes what they waited."""
        total_ns = 0
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 only names, and looked at often
            try:
                on_core, waited, _ = Path(f"/proc/{pid}/task/{thread}/schedstat").read_bytes().split()
            except (OSError, ValueError):
                continue
            if has_threads and not self._is_ready:
                self._is_ready = _is_ready(f"/proc/{pid}/task/{thread}/stat")
            total_ns += int(on_core)
            self._waited_ns[thread] = int(waited)
        return total_ns * _NANOSECOND_S


class KernelMemory:
    """What the kernel keeps for a sandbox and for none of its processes: files without their contents, and sockets.

    Args:
        pid: Of a process inside that runs no program yet.
    """

    def __init__(self, pid: int) -> None:
        self._folder = os.open(f"/proc/{pid}/root/tmp", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._sockets = os.open(f"/proc/{pid}/net/unix", os.O_RDONLY | os.O_CLOEXEC)
        self._socket_bytes = _socket_bytes()

    def read_bytes(self) -> int:
        """Give an upper bound."""
        files = os.fstatvfs(self._folder)
        num_sockets = -1  # a line of titles
        os.lseek(self._sockets, 0, os.SEEK_SET)
        while part := os.read(self._sockets, _PAGE_BYTES):
            num_sockets += part.count(b"\n")
        return (files.f_files - files.f_ffree) * _FILE_BYTES + num_sockets * self._socket_bytes

    def close(self) -> None:
        os.close(self._folder)
        os.close(self._sockets)


def _socket_bytes() -> int:
    """What may wait in a socket: what a sender may have on its way."""
    try:
        return int(Path("/proc/sys/net/core/wmem_default").read_text(encoding="ascii"))
    except OSError:  # not shown in network namespaces before Linux 6.3
        return _DEFAULT_SOCKET_BYTES


def _memory_bytes(pid: int, *, is_ended: bool) -> int:
    """Of a process; when its first thread has ended, the others still have its memory."""
    said = b""
    if is_ended:
        for thread in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 only names, and looked at often
            with contextlib.suppress(OSError):
                said = Path(f"/proc/{pid}/task/{thread}/status").read_bytes()
            if b"\nRssAnon:" in said:
                break
    else:
        said = Path(f"/proc/{pid}/status").read_bytes()
    return sum(int(line.split()[1]) << 10 for line in said.splitlines() if line.startswith(_MEMORY))


def _is_ready(file: str) -> bool:
    try:
        return Path(file).read_bytes().rpartition(b")")[2].split()[0] == b"R"
    except (OSError, IndexError):
        return False
