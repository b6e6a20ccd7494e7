"""What `out=` may name, with real devices, pipes and links."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError, StorageFailed
from rollpacker.metrics.files import publish_folder, write_atomically
from rollpacker.metrics.outputs import check_output, open_output

NULL_DEVICE = os.makedev(1, 3)


def device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, NULL_DEVICE)
    except PermissionError:
        pytest.skip("only root may make a device")


def bound_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(path))


def loop(path: Path) -> None:
    path.symlink_to(path)


def link_to_a_device(path: Path) -> None:
    device(path.with_name("device"))
    path.symlink_to("device")


REFUSED = {
    "device": device,
    "link to a device": link_to_a_device,
    "socket": bound_socket,
    "folder": Path.mkdir,
    "loop": loop,
}


@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_is_no_file_is_refused_before_the_work_and_stays(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "out"
    make(path)
    before = path.lstat()
    with pytest.raises(ConfigError, match=f"out={path} is a"):
        check_output(path)
    with pytest.raises(ConfigError), open_output(path) as file:
        file.write(b"new")
    with pytest.raises(StorageFailed, match="is a"):
        write_atomically(path, b"new")
    after = path.lstat()
    assert (before.st_ino, before.st_mode) == (after.st_ino, after.st_mode)
    assert not list(tmp_path.glob(".tmp-*"))


def test_a_file_is_refused_by_whatever_link_where_it_may_not_be_replaced(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    check_output(link, can_replace=False)
    file.write_text("old")
    for path in (file, link):
        check_output(path)
        with pytest.raises(ConfigError, match=f"out={path} exists"):
            check_output(path, can_replace=False)


def test_a_fifo_is_written_to_and_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()))
    reader.start()
    with open_output(path) as file:
        file.write(b"new")
    reader.join()
    assert read == [b"new"]
    assert path.is_fifo()
    with pytest.raises(StorageFailed, match="it is a pipe"):
        write_atomically(path, b"new")


@pytest.mark.parametrize("target", ["there", "not there", "deep/er"])
def test_a_link_stays_and_what_it_names_is_replaced(tmp_path: Path, target: str) -> None:
    if target == "there":
        (tmp_path / target).write_text("old")
    for name in ("first", "second"):
        (tmp_path / name).symlink_to(tmp_path / target)
    with open_output(tmp_path / "first") as file:
        file.write(b"new")
    assert (tmp_path / target).read_text() == "new"
    write_atomically(tmp_path / "second", b"newer", durable=True)
    assert (tmp_path / target).read_text() == "newer"
    assert all((tmp_path / name).is_symlink() for name in ("first", "second"))


def test_a_file_whose_writing_failed_stays_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("old")
    with pytest.raises(EOFError):
        write_half(tmp_path / "out")
    assert (tmp_path / "out").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def write_half(path: Path) -> None:
    with open_output(path) as file:
        file.write(b"new")
        raise EOFError


WRITE = """
import sys
from pathlib import Path
from rollpacker.metrics.outputs import open_output
with open_output(Path(sys.argv[1])) as file:
    file.write(b"new")
"""


@pytest.mark.parametrize("name", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "LINK"])
def test_standard_output_is_written_to_by_all_of_its_names(tmp_path: Path, name: str) -> None:
    link = tmp_path / "link"
    link.symlink_to("/dev/stdout")
    with (tmp_path / "log").open("w+b") as log:
        log.write(b"old ")
        log.flush()
        argv = [sys.executable, "-c", WRITE, name.replace("LINK", str(link))]
        subprocess.run(argv, check=True, stdout=log)
        piped = subprocess.run(argv, check=True, stdout=subprocess.PIPE)
    assert (tmp_path / "log").read_text() == "old new"
    assert piped.stdout == b"new"
    assert link.is_symlink()
    assert not (tmp_path / "-").exists()


def test_a_descriptor_that_is_not_open_for_writing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("")
    with (tmp_path / "input").open() as opened:
        for path in (f"/dev/fd/{opened.fileno()}", "/dev/fd/999"):
            with pytest.raises(ConfigError, match="not open for writing"):
                check_output(Path(path))


def test_a_full_disk_says_so_and_the_device_stays() -> None:
    full = subprocess.run(
        ["bash", "-c", f"{sys.executable} -c '{WRITE}' /dev/stdout > /dev/full"], check=False, capture_output=True
    )
    assert b"No space left on device" in full.stderr
    assert Path("/dev/full").is_char_device()


def test_a_folder_behind_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "old").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("elsewhere")
    with publish_folder(link) as temporary:
        (temporary / "new").write_text("new")
    assert link.is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["new"]
