"""Writes files and folders atomically: no reader ever sees half of one.

Invariant: a name without the prefix `.tmp-` is complete. Everything is written under a temporary name in the same
folder and renamed, which POSIX makes atomic; after a kill only temporaries are left, and the folder's writer clears
them with `remove_temporaries`. `durable=True` also survives a power failure (file and folder reach the disk before the
call returns).

Every OSError on the way becomes `StorageFailed` with the path, what it means, and what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rollpacker.core.errors import StorageFailed
from rollpacker.paths import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

TEMPORARY_PREFIX = ".tmp-"
"""Readers ignore such names; Parquet readers ignore every name with a leading dot by themselves."""

_CAUSES = {
    errno.ENOSPC: ("the disk is full", "Free some space, or choose a run.dir on another disk"),
    errno.EDQUOT: ("your disk quota is used up", "Free some space or files, or choose a run.dir with a larger quota"),
    errno.EFBIG: ("the file is larger than the limit for one file", "Raise `ulimit -f`, or choose another file system"),
    errno.EACCES: ("permission denied", "Choose a run.dir that you may write to"),
    errno.EPERM: ("permission denied", "Choose a run.dir that you may write to"),
    errno.EROFS: ("the file system is read-only", "Choose a run.dir on a file system that is mounted for writing"),
    errno.ENOTDIR: ("a part of the path is a file, not a folder", "Choose another run.dir, or move the file away"),
    errno.EEXIST: ("a file lies where a folder should be", "Choose another run.dir, or move the file away"),
    errno.EMFILE: ("too many files are open", "Raise `ulimit -n`"),
    errno.EIO: ("the disk reports an input/output error", "Look at the system log; the disk may be failing"),
    errno.ESTALE: ("the network file system lost the file", "Check the mount"),
}


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn every OSError of the block into `StorageFailed`, naming the path."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno, "unknown") if error.errno is not None else "unknown"
        meaning, remedy = _CAUSES.get(error.errno or 0, (error.strerror or str(error), "Check the path and its disk"))
        raise StorageFailed(
            f"{path} could not be written: {meaning} ({code})",
            "Files written before are complete and readable",
            f"{remedy}; then resume with run.resume=auto",
        ) from error


def make_private_folder(folder: Path) -> None:
    """Make a folder that no other user may enter; the folders above it are made as usual, one that exists stays as is.

    So who shares a run with a group makes its folder beforehand, or changes the mode of it: what lies in the folder
    has the modes that the user's umask gives it.
    """
    with storage_errors(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)


def write_atomically(path: Path, data: bytes | memoryview, *, durable: bool = False) -> None:
    """Create or replace a file; its folder is created when missing. A reader sees the old content or the new."""
    with storage_errors(path), replacing(path, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def replacing(path: Path, *, durable: bool) -> Iterator[IO[bytes]]:
    """Yield a file that becomes `path` when the block ends, or vanishes when it raises; OSErrors pass unchanged.

    A link stays, and what it names is replaced.

    Raises:
        StorageFailed: There is something that is no regular file; it stays as it is.
    """
    target = _behind_links(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_name(target)
    try:
        with temporary.open("xb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync(target.parent)


@contextlib.contextmanager
def publish_folder(folder: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `folder` when the block ends, or vanishes when it raises.

    What the block raises passes unchanged. When its task is cancelled the temporary folder stays, for
    `remove_temporaries`: deleting it may take long, and something may still write there.

    An existing `folder` is replaced: the old one goes aside first, so a kill between the two renames leaves no
    `folder`, never a mixed one. A link stays, and what it names is replaced.
    """
    folder = Path(os.path.realpath(folder))
    temporary = _temporary_name(folder)
    with storage_errors(folder):
        temporary.mkdir(parents=True)
    try:
        yield temporary
        with storage_errors(folder):
            if durable:
                sync_tree(temporary)
            aside = _move_aside(folder)
            temporary.rename(folder)
            if durable:
                _sync(folder.parent)
            if aside is not None:
                _delete(aside)
    except asyncio.CancelledError:
        raise
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def hide_folder(folder: Path) -> None:
    """Give a folder, or a link to one, a temporary name, so that `remove_temporaries` deletes it."""
    with storage_errors(folder):
        _move_aside(folder)


def remove_temporaries(folder: Path, *names: str) -> int:
    """Delete what killed writers left directly in a folder; returns how many. Only the folder's one writer may call.

    With `names` only what was to get one of them: in a folder that has other writers, too.
    A folder that something still writes to is deleted as far as possible; the rest is left for the next call.
    """
    if not folder.is_dir():
        return 0
    found = folder.glob(f"{TEMPORARY_PREFIX}*")
    stale = sorted(path for path in found if not names or path.name.split("-", 2)[-1] in names)
    with storage_errors(folder):
        for path in stale:
            _delete(path, as_far_as_possible=True)
    return len(stale)


def make_durable(paths: Iterable[Path]) -> None:
    """Write files and the folders that name them through to the disk; files that are gone by now are skipped."""
    folders: dict[Path, None] = {}
    for path in paths:
        folders[path.parent] = None
        with storage_errors(path), contextlib.suppress(FileNotFoundError):
            _sync(path)
    for folder in folders:
        with storage_errors(folder), contextlib.suppress(FileNotFoundError):
            _sync(folder)


def sync_tree(folder: Path) -> None:
    """Write a folder and all that is in it through to the disk; an OSError is raised."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)


def _behind_links(path: Path) -> Path:
    """The regular file that a path names, which may not be there yet."""
    target = Path(os.path.realpath(path))
    with contextlib.suppress(FileNotFoundError):
        mode = target.lstat().st_mode
        if not stat.S_ISREG(mode):
            raise StorageFailed(
                f"{path} could not be written: it is {kind_of(mode)}",
                "Only a regular file is replaced",
                "Choose another name, or move it away",
            )
    return target


def _delete(path: Path, *, as_far_as_possible: bool = False) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=as_far_as_possible)
    else:
        path.unlink(missing_ok=True)


def _temporary_name(path: Path) -> Path:
    """A fresh name beside `path`: two writers never share one."""
    return path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(4)}-{path.name}")


def _move_aside(folder: Path) -> Path | None:
    aside = _temporary_name(folder)
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return None
    return aside


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
