"""The lock of a file, which one process holds at a time; a folder is locked by a file in it.

Invariant: a lock ends with its process, however that ends. The file stays, and says who holds the lock as long as
somebody does: whoever takes it writes its own name there. It is an advisory lock of the whole file, see flock(2).
"""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

from rollpacker.core.errors import RollpackerError
from rollpacker.metrics.files import storage_errors
from rollpacker.paths import open_to_read

LOCK_FILE = "lock"
"""In a folder that one process at a time may write to, such as that of a run."""

_POLL_S = 0.5
_LONGEST_NAME_BYTES = 200
"""Of a holder: a host name has 64 at most."""


class FileLock:
    """The lock of a file; closing the file gives it back."""

    def __init__(self, file: Path) -> None:
        """Open the file, which is made where there is none."""
        with storage_errors(file):
            self._file = file.open("a+b", buffering=0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def take(self, patience_s: float = 0.0) -> bool:
        """Take it within so many seconds; False where another process keeps it.

        Raises:
            OSError: The file system has no locks, or fails.
        """
        for num_tries in range(round(patience_s / _POLL_S) + 1):
            if num_tries:
                time.sleep(_POLL_S)
            with suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._name_holder()
                return True
        return False

    @property
    def holder(self) -> str:
        """Who holds it, to put behind its name: ` (process 4711 on node3)`; empty where the file does not say."""
        with suppress(OSError):
            self._file.seek(0)
            if said := self._file.read(_LONGEST_NAME_BYTES).decode(errors="replace").strip():
                return f" ({said})"
        return ""

    def _name_holder(self) -> None:
        with suppress(OSError):  # a full disk: the lock holds without a name
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())


@contextmanager
def held_lock(file: Path, refusal: Callable[[str], RollpackerError]) -> Iterator[None]:
    """Hold the lock of a file where the file system has locks; where it has none, processes are not kept apart.

    Args:
        file: In a folder that exists.
        refusal: Makes the error that is raised where another process holds it, from `FileLock.holder`.
    """
    with FileLock(file) as lock:
        try:
            is_ours = lock.take()
        except OSError:
            is_ours = True
        if not is_ours:
            raise refusal(lock.holder)
        yield


def is_locked(file: Path) -> bool | None:
    """Whether a process holds the lock of a file; None where that cannot be told."""
    try:
        with open_to_read(file) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False
