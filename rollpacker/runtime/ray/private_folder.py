"""A folder on the node itself for one Ray's session: its path is short enough for sockets, and it never stays for long.

Only its user may enter it. Ray makes the folder that it uses open to everyone (mode 0777, without the sticky bit), so
it gets a folder below. And the folder is made only where no other user may rename it.

Its maker holds its lock, and the guardian of Ray removes it. Where even the guardian was killed (Slurm kills every
process of a job at its end), the next run that makes a folder there on the same machine finds the lock free and removes
it. The lock names the machine: where several have their scratch on one file system, none may see the locks of others.
A folder whose lock names none was never used: its maker was killed, or the disk was full.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from string import Template

from rollpacker.core.errors import WorldError

_PREFIX = "rp-"
_LOCK_FILE = "lock"
_SESSIONS, _TEMPORARY_FILES = "r", "t"
"""Short names, for the paths of sockets."""
_LONGEST_SOCKET = f"/{_PREFIX}12345678/{_SESSIONS}/session_2026-01-01_00-00-00_123456_4194304/sockets/plasma_store"
_SOCKET_PATH_BYTES = 107
"""Of an AF_UNIX address, see unix(7)."""
LONGEST_SCRATCH_BYTES = _SOCKET_PATH_BYTES - len(_LONGEST_SOCKET)
_ABANDONED_S = 60.0
"""A younger folder whose lock is free may be one that is being made."""


class PrivateFolder:
    """A new folder of this process, which no other user may enter."""

    def __init__(self, scratch: Path) -> None:
        """Make it in `scratch`; raises OSError where that cannot be."""
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=scratch))
        self.sessions = self.path / _SESSIONS
        """Made by Ray, and open to everyone who may enter the folder above."""
        self.temporary_files = self.path / _TEMPORARY_FILES
        """Replaces /tmp in Ray's processes: sockets of vLLM, code that torch compiles and runs."""
        with ExitStack() as made:  # undone backwards: NFS keeps a folder in which a file is open
            made.callback(self._remove_files)
            self._lock = made.enter_context((self.path / _LOCK_FILE).open("wb", buffering=0))
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            self._lock.write(socket.gethostname().encode())
            self.temporary_files.mkdir()
            made.pop_all()

    def remove(self) -> None:
        """Remove it."""
        self._lock.close()
        self._remove_files()

    def _remove_files(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)


def private_folder(candidates: Sequence[str], environment: Mapping[str, str]) -> PrivateFolder:
    """Make a folder in the first candidate that is writable and short enough.

    Args:
        candidates: Folders, in which $NAME stands for a variable; one that names an unset variable is skipped.
        environment: The variables.
    """
    refused = []
    for candidate in candidates:
        scratch = Template(candidate).safe_substitute(environment)
        if "$" in scratch or not scratch:
            refused.append(f"{candidate} is not set")
        elif len(os.fsencode(scratch)) > LONGEST_SCRATCH_BYTES:
            refused.append(f"{scratch} is longer than {LONGEST_SCRATCH_BYTES} bytes")
        elif open_folder := _open_to_everyone(Path(scratch).absolute()):
            refused.append(f"every user may rename what others make in {open_folder} (its owner can `chmod +t` it)")
        else:
            try:
                folder = PrivateFolder(Path(scratch).absolute())
            except OSError as error:
                refused.append(f"{scratch} is not writable ({error.strerror})")
            else:
                _remove_abandoned(folder.path.parent)
                return folder
    raise WorldError(
        f"No folder for Ray's session: {'; '.join(refused)}.",
        f"It is on the node itself, writable, and its path has at most {LONGEST_SCRATCH_BYTES} bytes, because that of "
        f"a socket in it has at most {_SOCKET_PATH_BYTES}.",
        "Put one in front of cluster.scratch, such as cluster.scratch=[/tmp].",
    )


def _open_to_everyone(folder: Path) -> Path | None:
    """Find a folder on the path in which every user may rename the files of others: writable, without a sticky bit."""
    for part in (folder, *folder.parents, *folder.resolve().parents):
        with suppress(OSError):  # it does not exist: creating the folder will fail, with a message
            mode = part.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                return part
    return None


def _remove_abandoned(scratch: Path) -> None:
    for folder in scratch.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # not ours, one that is held, or one just removed
            if folder.lstat().st_uid == os.geteuid():
                _remove_if_abandoned(folder)


def _remove_if_abandoned(folder: Path) -> None:
    lock_file = folder / _LOCK_FILE
    with lock_file.open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_old = time.time() - lock_file.stat().st_mtime > _ABANDONED_S
        if is_old and lock.read() in {"", socket.gethostname()}:
            shutil.rmtree(folder, ignore_errors=True)
