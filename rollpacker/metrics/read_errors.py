"""Tells a file that is damaged from one that cannot be read now.

A damaged file may be set aside, and what it held made again. Any other one may be whole: another permission, fewer open
files or the network file system's return make it readable, so it must stay where it is.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from rollpacker.core.errors import StorageFailed

if TYPE_CHECKING:
    from pathlib import Path

_DAMAGES = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL})
"""Nothing has this name, or something that is no regular file does: `rollpacker.paths` refuses it with EINVAL."""


def is_damage(error: Exception) -> bool:
    """Whether an error of reading a file says that it is missing, or is not what was written.

    pyarrow reports a broken footer as an `OSError` without a number.
    """
    if isinstance(error, OSError):
        return error.errno is None or error.errno in _DAMAGES
    return not isinstance(error, MemoryError)  # which one of pyarrow's is


def stop_unless_damaged(path: Path, error: OSError) -> None:
    """Raise `StorageFailed` where a file that cannot be read may be whole."""
    if not is_damage(error):
        raise not_resumable_now(f"{path} cannot be read: {error.strerror}") from error


def not_resumable_now(problem: str) -> StorageFailed:
    """The error that stops a run before it is resumed without a file that may be whole."""
    return StorageFailed(
        problem,
        "It may be whole, so nothing was set aside",
        "Correct that (its permissions, `ulimit -n`, the mount), or move away what the disk has lost; then try again",
    )
