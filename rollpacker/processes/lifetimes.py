"""Binds the life of a process to its parent's, ends what it started, and limits its resources."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
"""From <linux/prctl.h>."""


def exit_when_parent_dies(parent_pid: int) -> None:
    """Exit at the kernel's signal if the parent is gone, and end all descendants before.

    The signal also comes when only the starting *thread* ends.
    """

    def check(_signal: int, _frame: FrameType | None) -> None:
        if os.getppid() != parent_pid:
            kill_descendants()
            os._exit(1)

    signal.signal(signal.SIGUSR1, check)
    set_parent_death_signal(signal.SIGUSR1)
    check(0, None)


def exit_at_sigterm() -> None:
    """Exit at SIGTERM, and end all descendants before."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        kill_descendants()
        os._exit(1)

    signal.signal(signal.SIGTERM, end)


def fork_under_keeper(parent_pid: int) -> None:
    """Fork, and return in the child alone, which may hang in C code, where Python handles no signals.

    This process keeps it, and has no more to do. It exits when the child has ended, at SIGTERM, or when its parent is
    gone, and kills before what is left of the child and of all that it started.
    """
    become_reaper()
    keeper_pid, child_pid = os.getpid(), os.fork()
    if child_pid == 0:
        set_parent_death_signal(signal.SIGKILL)
        if os.getppid() != keeper_pid:
            os._exit(1)  # the keeper died before the kernel knew what to do then
        return
    exit_at_sigterm()
    exit_when_parent_dies(parent_pid)
    os.dup2(os.open(os.devnull, os.O_RDWR), 0)  # the standard input is the child's
    pid, status = os.wait()
    while pid != child_pid:
        pid, status = os.wait()
    kill_descendants()
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def set_parent_death_signal(number: signal.Signals) -> None:
    """Ask the kernel for a signal when the thread ends that forked this process; forgotten by a change of user."""
    _control(_PR_SET_PDEATHSIG, int(number))


def become_reaper() -> None:
    """Become the parent of descendants whose own parent ends."""
    _control(_PR_SET_CHILD_SUBREAPER, 1)


@contextlib.contextmanager
def reaping() -> Iterator[None]:
    """Be that parent for a while; who goes on without waiting for orphans keeps them as zombies."""
    become_reaper()
    try:
        yield
    finally:
        _control(_PR_SET_CHILD_SUBREAPER, 0)


def tree_of(pid: int) -> Iterator[int]:
    """Give a process and its descendants."""
    ahead = [pid]
    while ahead:
        each = ahead.pop()
        yield each
        ahead += children_of(each)


def children_of(pid: int) -> list[int]:
    """Of all its threads; none when it has ended."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208 only names, and looked at often
    except OSError:
        return []
    found: list[int] = []
    for thread in threads:
        with contextlib.suppress(OSError):  # it has ended; another one has its children
            found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()]
    return found


def kill_descendants(but: Collection[int] = ()) -> None:
    """Kill all descendants of this process, those that it adopted too, until none is left.

    Args:
        but: Descendants that stay, with their own.
    """
    own = os.getpid()
    while others := set(tree_of(own)) - {own} - {each for pid in but for each in tree_of(pid)}:
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in others.intersection(children_of(own)):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def limit_resource(kind: int, value: int) -> None:
    """Lower a limit of this process and its children for good."""
    _, hard = resource.getrlimit(kind)
    lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (lowest, lowest))


def _control(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")
