"""The file system of `run.dir`: whether a run can write, replace and lock files there, and other nodes see them.

The trial uses a temporary folder in the nearest folder that exists.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from rollpacker.launch.doctor.findings import Finding, probe
from rollpacker.launch.file_systems import FileSystem, existing_part, file_system_of

TRIAL_PREFIX = ".rollpacker-doctor-"

_ENOUGH_BYTES = 10 * 10**9
"""A checkpoint of a 7B model with its optimizer takes some 80 GB; below this not even a small one fits."""

_LARGEST_SKEW_S = 5.0
"""Between two clocks. The end of a job and the age of a status are compared across machines to a few seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The result of file operations in a folder."""

    folder: Path
    file_system: FileSystem
    failures: tuple[str, ...]
    """What failed, each with the system's reason."""
    num_free_bytes: int
    skew_s: float
    """The file server's clock minus this machine's, at least, by the time stamp of a new file."""


def try_files(run_dir: Path) -> Trial:
    """Try the file operations of a run."""
    folder = existing_part(run_dir)
    failures: list[str] = []
    skew_s = 0.0
    try:
        own = Path(tempfile.mkdtemp(prefix=TRIAL_PREFIX, dir=folder))
    except OSError as error:
        failures.append(f"making a folder ({error.strerror})")
    else:
        try:
            failures += [found for what, do in _TRIALS.items() if (found := _failure(what, do, own))]
            skew_s = clock_skew(own)
        finally:
            shutil.rmtree(own, ignore_errors=True)
    usage = os.statvfs(folder)
    return Trial(
        folder=folder,
        file_system=file_system_of(folder),
        failures=tuple(failures),
        num_free_bytes=usage.f_bavail * usage.f_frsize,
        skew_s=skew_s,
    )


def clock_skew(folder: Path) -> float:
    """Compare the time that a new file gets with the times before and after; 0 when it lies between them."""
    file = folder / "clock"
    before = time.time()
    try:
        file.write_bytes(b"now")
        stamp = file.stat().st_mtime
    except OSError:
        return 0.0
    after = time.time()
    return min(0.0, stamp - before) or max(0.0, stamp - after)


def check_files(trial: Trial, *, must_be_shared: bool) -> Iterator[Finding]:
    """Check the folder for one run: other nodes, the tried operations, free space, and the server's clock."""
    is_shared = trial.file_system.is_shared
    text = f"{trial.folder} on {trial.file_system}"
    choose = (
        "Choose a run.dir on the cluster's shared file system; if all nodes do see it, set "
        "cluster.has_shared_files=true."
    )
    yield probe(
        "run.dir",
        text,
        (must_be_shared and is_shared is None, "warning", f"{text}, which the nodes may not see", choose),
        (must_be_shared and is_shared is False, "problem", f"{text}, which only this machine sees", choose),
    )
    has_no_locks = any("lock" in failure for failure in trial.failures)
    yield probe(
        "files",
        "can be written, replaced at once, and locked",
        (
            bool(trial.failures),
            "problem",
            f"{trial.folder}: {', '.join(trial.failures)} failed",
            "A run locks its folder. Ask for locks (Lustre: mount option flock), or choose another run.dir."
            if has_no_locks
            else "Choose a run.dir that you may write to.",
        ),
    )
    room = f"{trial.num_free_bytes / 1e9:,.0f} GB are free"
    free = "Free some, lower run.keep_checkpoints, or choose a run.dir on another file system."
    yield probe("disk", room, (trial.num_free_bytes < _ENOUGH_BYTES, "warning", f"only {room}", free))
    side = "ahead of" if trial.skew_s > 0 else "behind"
    yield probe(
        "clock",
        "agrees with that of the file system",
        (
            abs(trial.skew_s) > _LARGEST_SKEW_S,
            "warning",
            f"the file system's clock is {abs(trial.skew_s):.0f} s {side} this machine's",
            "The status of a run may be taken for an old one. Ask for a time service (chrony) on both.",
        ),
    )


def _write(folder: Path) -> None:
    with (folder / "file").open("wb") as file:
        file.write(b"old")
        os.fsync(file.fileno())


def _replace(folder: Path) -> None:
    (folder / "new").write_bytes(b"new")
    (folder / "new").replace(folder / "file")
    if (folder / "file").read_bytes() != b"new":
        raise OSError(0, "the old content is still there")


def _lock(folder: Path) -> None:
    with (folder / "lock").open("w") as first, (folder / "lock").open("w") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
    raise OSError(0, "two processes got it at once")


_TRIALS: dict[str, Callable[[Path], None]] = {"writing": _write, "replacing": _replace, "locking": _lock}


def _failure(what: str, do: Callable[[Path], None], folder: Path) -> str | None:
    try:
        do(folder)
    except OSError as error:
        return f"{what} ({error.strerror})"
    return None
