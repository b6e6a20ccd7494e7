"""A folder on the node itself that holds one Ray's session: short enough for sockets, and never left behind for long.

Who made it holds its lock, and whoever ends Ray removes it. Where even that was killed (Slurm kills every process of a
job at its end), the next one who makes a folder there finds the lock free and removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from string import Template

from rollpacker.core.errors import WorldError

_PREFIX = "rp-"
_LOCK_FILE = "lock"
_LONGEST_SOCKET = f"/{_PREFIX}12345678/session_2026-01-01_00-00-00_123456_4194304/sockets/plasma_store"
_SOCKET_PATH_BYTES = 107
"""Of an AF_UNIX address, see unix(7)."""
LONGEST_SCRATCH_BYTES = _SOCKET_PATH_BYTES - len(_LONGEST_SOCKET)
_ABANDONED_S = 60.0
"""A younger folder whose lock is free may be one that is being made."""


class PrivateFolder:
    """A new folder of this process."""

    def __init__(self, scratch: Path) -> None:
        """Make it in `scratch`; raises OSError where that cannot be."""
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=scratch))
        self._lock = (self.path / _LOCK_FILE).open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def remove(self) -> None:
        """Remove what is left of it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def private_folder(candidates: Sequence[str], environment: Mapping[str, str]) -> PrivateFolder:
    """Make a folder in the first candidate that is writable and short enough.

    Args:
        candidates: Folders, in which $NAME stands for a variable; one that names an unset variable is passed over.
        environment: The variables.
    """
    refused = []
    for candidate in candidates:
        scratch = Template(candidate).safe_substitute(environment)
        if "$" in scratch or not scratch:
            refused.append(f"{candidate} is not set")
        elif len(os.fsencode(scratch)) > LONGEST_SCRATCH_BYTES:
            refused.append(f"{scratch} is longer than {LONGEST_SCRATCH_BYTES} bytes")
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


def _remove_abandoned(scratch: Path) -> None:
    for lock_file in scratch.glob(f"{_PREFIX}*/{_LOCK_FILE}"):
        with suppress(OSError), lock_file.open("r+") as lock:  # another user's, one that is held, or one just removed
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - lock_file.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(lock_file.parent, ignore_errors=True)
