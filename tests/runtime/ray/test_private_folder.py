"""Where Ray's session lives on a node."""

import errno
import fcntl
import os
import resource
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rollpacker.core.errors import WorldError
from rollpacker.runtime.ray.private_folder import LONGEST_SCRATCH_BYTES, PrivateFolder, private_folder


@pytest.fixture
def scratch():
    """A folder with a short name."""
    with tempfile.TemporaryDirectory(prefix="s-", dir="/tmp") as folder:
        yield Path(folder)


def test_the_first_folder_that_is_set_short_and_writable_is_taken(scratch):
    environment = {"LONG": "/" + "x" * LONGEST_SCRATCH_BYTES, "SHORT": str(scratch)}
    folder = private_folder(("$SLURM_TMPDIR", "$LONG", "/proc", "$SHORT", "."), environment)
    assert folder.path.parent == scratch
    assert folder.path.is_dir()
    folder.remove()
    assert not folder.path.exists()


def test_the_sockets_of_ray_fit_below_the_longest_folder():
    session = "/rp-12345678/r/session_2026-01-01_00-00-00_123456_4194304/sockets/plasma_store"
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(FileNotFoundError):
        probe.connect("/" + "x" * (LONGEST_SCRATCH_BYTES - 1) + session)
    with socket.socket(socket.AF_UNIX) as probe, pytest.raises(OSError, match="path too long"):
        probe.connect("/" + "x" * (LONGEST_SCRATCH_BYTES - 1) + session + "x")


def test_without_a_fit_folder_every_candidate_is_explained():
    with pytest.raises(WorldError) as raised:
        private_folder(("$UNSET", "/" + "x" * 99, "/proc"), {})
    message = str(raised.value)
    assert "$UNSET is not set" in message
    assert f"is longer than {LONGEST_SCRATCH_BYTES} bytes" in message
    assert "/proc is not writable" in message
    assert "cluster.scratch=[/tmp]" in message


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_no_folder_is_made_where_every_user_may_rename_it(scratch, depth):
    open_folder, elsewhere = scratch / "open", scratch / "elsewhere"
    place = open_folder.joinpath("a", "b") if depth == 2 else open_folder / "a" if depth == 1 else open_folder
    place.mkdir(parents=True)
    elsewhere.mkdir()
    open_folder.chmod(0o777)
    assert private_folder((str(place), str(elsewhere)), {}).path.parent == elsewhere
    with pytest.raises(WorldError, match=f"every user may rename what others make in {open_folder}"):
        private_folder((str(place),), {})
    open_folder.chmod(0o1777)
    assert private_folder((str(place),), {}).path.parent == place


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_only_its_user_enters_a_folder_whatever_the_umask(scratch, umask):
    former = os.umask(umask)
    try:
        folder = private_folder((str(scratch),), {})
    finally:
        os.umask(former)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    assert {folder.sessions.parent, folder.temporary_files.parent} == {folder.path}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_what_another_user_has_left_is_not_looked_into(scratch):
    theirs = scratch / "rp-theirs"
    theirs.mkdir()
    (theirs / "lock").touch()
    os.utime(theirs / "lock", (0, 0))
    os.chown(theirs, 65534, 65534)
    private_folder((str(scratch),), {})
    assert (theirs / "lock").exists()


def test_on_a_full_disk_nothing_is_left(scratch, monkeypatch):
    def fill(_file, _operation):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fcntl, "flock", fill)
    with pytest.raises(WorldError, match=f"{scratch} is not writable \\(No space left on device\\)"):
        private_folder((str(scratch),), {})
    assert list(scratch.iterdir()) == []


def test_on_a_full_disk_the_lock_is_closed_before_its_folder_is_removed(scratch):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            PrivateFolder(scratch)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert raised.value.__traceback__, "its frames keep every file that nobody closes"
    opened = [file.readlink() for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]
    assert not any(file.is_relative_to(scratch) for file in opened)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("age_s", [0, 100])
def test_a_folder_whose_maker_ended_before_it_named_its_machine_is_removed_when_it_is_old(scratch, age_s):
    abandoned = abandon(scratch, age_s)
    made_at = (abandoned / "lock").stat().st_mtime
    (abandoned / "lock").write_text("")
    os.utime(abandoned / "lock", (made_at, made_at))
    private_folder((str(scratch),), {})
    assert abandoned.exists() == (age_s == 0)


def abandon(scratch, age_s):
    """Let a process make a folder and be killed."""
    code = (
        "import os; from pathlib import Path; from rollpacker.runtime.ray.private_folder import PrivateFolder;"
        f"folder = PrivateFolder(Path({str(scratch)!r})); print(folder.path, flush=True); os.kill(os.getpid(), 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, check=False)
    folder = Path(done.stdout.strip())
    made_at = (folder / "lock").stat().st_mtime - age_s
    os.utime(folder / "lock", (made_at, made_at))
    return folder


def test_what_another_machine_has_on_the_same_file_system_is_left_alone_whatever_its_lock_says(scratch):
    theirs = abandon(scratch, age_s=100)
    (theirs / "lock").write_text("another-machine")
    os.utime(theirs / "lock", (0, 0))
    private_folder((str(scratch),), {})
    assert theirs.exists()


def test_the_next_one_removes_what_a_killed_process_left_and_nothing_that_is_in_use(scratch):
    abandoned, perhaps_being_made = abandon(scratch, age_s=100), abandon(scratch, age_s=1)
    in_use = PrivateFolder(scratch)
    os.utime(in_use.path / "lock", (0, 0))
    somebody_elses = scratch / "rp-other"
    somebody_elses.mkdir()
    mine = private_folder((str(scratch),), {})
    assert set(scratch.iterdir()) == {perhaps_being_made, in_use.path, somebody_elses, mine.path}
    assert not abandoned.exists()
