"""Atomic files and folders, with real files and a really full disk."""

from __future__ import annotations

import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from rollpacker.core.errors import StorageFailed
from rollpacker.metrics.files import (
    TEMPORARY_PREFIX,
    make_durable,
    make_private_folder,
    publish_folder,
    remove_temporaries,
    storage_errors,
    write_atomically,
)


@pytest.mark.parametrize("durable", [False, True])
def test_a_file_is_replaced_and_no_temporary_stays(tmp_path: Path, durable: bool) -> None:
    path = tmp_path / "new" / "a.json"
    write_atomically(path, b"old", durable=durable)
    write_atomically(path, b"new", durable=durable)
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077])
def test_a_private_folder_is_its_users_own_and_the_folders_above_it_are_as_usual(tmp_path: Path, umask: int) -> None:
    former = os.umask(umask)
    try:
        make_private_folder(tmp_path / "above" / "own")
    finally:
        os.umask(former)
    assert (tmp_path / "above" / "own").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "above").stat().st_mode & 0o777 == 0o777 & ~umask


def test_a_folder_that_exists_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    make_private_folder(tmp_path)
    assert tmp_path.stat().st_mode & 0o7777 == 0o2750


def test_a_published_folder_appears_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "step-3"
    for content in ("first", "second"):
        with publish_folder(folder, durable=True) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / content).write_text(content)
            assert not (folder / "deep" / content).exists()
        assert [path.name for path in (folder / "deep").iterdir()] == [content]
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_whose_writing_failed_vanishes_and_the_old_one_stays(tmp_path: Path) -> None:
    folder = tmp_path / "step-3"
    with publish_folder(folder) as temporary:
        (temporary / "model").write_text("old")
    with pytest.raises(TimeoutError):  # an OSError by inheritance, but no storage failure
        write_half_a_folder(folder)
    assert (folder / "model").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def write_half_a_folder(folder: Path) -> None:
    with publish_folder(folder) as temporary:
        (temporary / "model").write_text("half")
        raise TimeoutError


def test_temporaries_of_a_killed_writer_are_removed_and_nothing_else(tmp_path: Path) -> None:
    script = f"""
    import os, signal
    from pathlib import Path
    from rollpacker.metrics.files import publish_folder, write_atomically
    write_atomically(Path({str(tmp_path / "kept")!r}), b"whole")
    with publish_folder(Path({str(tmp_path / "never")!r})) as temporary:
        (temporary / "model").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob(f"{TEMPORARY_PREFIX}*"))) == 1
    assert remove_temporaries(tmp_path) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert remove_temporaries(tmp_path / "missing") == 0


def test_of_a_folder_with_several_writers_only_temporaries_of_the_given_names_are_removed(tmp_path: Path) -> None:
    for name in ("status.json", "report.html", "my-model"):
        (tmp_path / f"{TEMPORARY_PREFIX}0a1b2c3d-{name}").touch()
    (tmp_path / f"{TEMPORARY_PREFIX}0a1b2c3d-model").mkdir()
    assert remove_temporaries(tmp_path, "status.json", "model") == 2
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == [f"{TEMPORARY_PREFIX}0a1b2c3d-{name}" for name in ("my-model", "report.html")]


def test_a_temporary_that_something_still_writes_to_is_left_for_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{TEMPORARY_PREFIX}1-step-3"
    folder.mkdir()
    (folder / "model").write_text("half")

    def not_empty(path: str, **_: object) -> None:
        raise OSError(errno.ENOTEMPTY, "a file that is open elsewhere", path)  # as NFS keeps one that was deleted

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", not_empty)
        remove_temporaries(tmp_path)
    assert list(folder.iterdir()) == []
    remove_temporaries(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_making_durable_syncs_each_file_before_its_folder_and_skips_files_that_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / "a" / "1", tmp_path / "a" / "2", tmp_path / "b" / "3"]
    for path in paths:
        write_atomically(path, b"1")
    synced: list[str] = []
    fsync = os.fsync

    def recorded_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))

    monkeypatch.setattr(os, "fsync", recorded_fsync)
    make_durable((*paths, tmp_path / "b" / "gone", tmp_path / "no" / "folder"))
    assert synced == [str(path) for path in (*paths, tmp_path / "a", tmp_path / "b")]


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (errno.ENOSPC, "the disk is full (ENOSPC)"),
        (errno.EDQUOT, "your disk quota is used up (EDQUOT)"),
        (errno.EACCES, "permission denied (EACCES)"),
        (errno.EROFS, "the file system is read-only (EROFS)"),
        (errno.ENAMETOOLONG, "File name too long (ENAMETOOLONG)"),
    ],
)
def test_an_os_error_becomes_a_message_in_three_parts(code: int, meaning: str) -> None:
    with pytest.raises(StorageFailed) as raised, storage_errors(Path("runs/x/file")):
        raise OSError(code, os.strerror(code))
    assert raised.value.problem == f"runs/x/file could not be written: {meaning}"
    assert raised.value.allowed
    assert "run.resume=auto" in raised.value.remedy
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)  # noqa: S301 our own bytes


def test_a_path_through_a_file_is_refused_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match=r"file/a could not be written: a part of the path is a file, not a folder"):
        write_atomically(tmp_path / "file" / "a", b"1")


def test_a_write_beyond_the_size_limit_leaves_the_old_content_and_no_temporary(
    tmp_path: Path, file_size_limit: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "a"
    write_atomically(path, b"old")
    with file_size_limit(1000), pytest.raises(StorageFailed, match="larger than the limit"):
        write_atomically(path, b"x" * 2000)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_to_a_full_disk_leaves_the_old_content_and_no_temporary(small_disk: Path) -> None:
    path = small_disk / "a"
    write_atomically(path, b"old")
    with pytest.raises(StorageFailed, match=r"the disk is full \(ENOSPC\)"):
        write_atomically(path, b"x" * 10_000_000)
    assert path.read_bytes() == b"old"
    assert list(small_disk.iterdir()) == [path]
