"""Paths on the disk: whether one is a regular file, where its links lead, and which one was meant.

A device or a pipe has no end: reading it would take all memory, or never return.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFLNK: "a link that leads back to itself",
}


def kind_of(mode: int) -> str:
    """The kind of a path as text; `mode` is its `st_mode`."""
    return _KINDS.get(stat.S_IFMT(mode), "a file")


def special_kind(path: Path) -> str:
    """The kind of a path that is neither a regular file nor a folder; empty for these, and where it does not exist.

    What lies in /dev or /proc is this process's own, such as /dev/stdin: it is another file for another process.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return ""  # opening it raises the reason
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return kind_of(mode)
    written = os.path.abspath(path)  # noqa: PTH100  resolve() would follow /dev/stdin to what it is here
    is_own = written.startswith(("/dev/", "/proc/")) and not written.startswith("/dev/shm/")  # noqa: S108  tmpfs
    return "a file of this process alone" if is_own else ""


def read_text(path: Path) -> str:
    """Read a text file in UTF-8.

    Raises:
        OSError: It cannot be read, or is a device or a pipe.
        ValueError: It is no text.
    """
    refuse_special(path)
    return path.read_text(encoding="utf-8")


def read_bytes(path: Path) -> bytes:
    """Read a file; raises `OSError` also for a device or a pipe."""
    refuse_special(path)
    return path.read_bytes()


def open_to_read(path: Path) -> BinaryIO:
    """Open a file; raises `OSError` also for a device or a pipe."""
    refuse_special(path)
    return path.open("rb")


def refuse_special(path: Path) -> None:
    """Raise an `OSError` for a device or a pipe."""
    if kind := special_kind(path):
        raise OSError(errno.EINVAL, f"it is {kind}", str(path))


def real_path(path: Path) -> Path:
    """Follow all links. Links in a circle are kept, and opening the path raises the reason."""
    return Path(os.path.realpath(path))


def nearest_beside(path: Path, is_meant: Callable[[Path], bool] = Path.exists) -> Path | None:
    """The path beside a missing one whose name is most similar; None without any, and where none can be listed.

    Names of files are compared without their endings; of several with one stem, that with the missing one's is given.
    """
    try:
        beside = sorted(
            filter(is_meant, path.parent.iterdir()), key=lambda each: (each.suffix == path.suffix, each.name)
        )
        folders = {each.name: each for each in beside if each.is_dir()}
        files = {each.stem: each for each in beside if not each.is_dir()}
    except OSError:
        return None
    kinds = [(path.stem, files), (path.name, folders)]
    is_file = path.stem in files or path.suffix[1:2].isalpha()  # .5-7B is no ending
    for name, others in kinds if is_file else reversed(kinds):
        if close := difflib.get_close_matches(name, others, n=1):
            return others[close[0]]
    return None


def reason_of(error: Exception) -> str:
    """Why a file cannot be read, as text without the error's class, its number and the path."""
    match error:
        case FileNotFoundError():  # libraries raise it with the path alone
            return os.strerror(errno.ENOENT)
        case OSError():
            return error.strerror or str(error)
        case KeyError():
            return f"it has no {error}"
        case TypeError() | AttributeError():
            return "its values are of another kind"
        case _:
            return str(error)
