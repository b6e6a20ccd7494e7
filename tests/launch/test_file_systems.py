from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollpacker.launch.file_systems import FileSystem, existing_part, file_system_of, mount_of, parse_mounts

MOUNTS = r"""
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
29 27 0:26 / /home rw,relatime shared:1 master:2 - nfs4 filer:/export/home rw,vers=4.2
30 29 0:27 / /home/me/my\040scratch rw - lustre mds@tcp:/scratch rw
31 29 0:28 / /home/me/layer rw - overlay overlay rw
32 29 0:29 / /home/me/layer rw - tmpfs tmpfs rw
""".strip()


@pytest.mark.parametrize(
    ("path", "kind", "is_shared"),
    [
        ("/var/x", "ext4", False),
        ("/home/me/runs", "nfs4", True),
        ("/homes/me", "ext4", False),
        ("/home/me/my scratch/x", "lustre", True),
        ("/home/me/layer/x", "tmpfs", False),
    ],
)
def test_a_path_lies_on_the_deepest_mount_above_it_and_the_latest_of_these(
    path: str, kind: str, is_shared: bool
) -> None:
    mount = mount_of(Path(path), parse_mounts(MOUNTS))

    assert (mount.kind, mount.is_shared) == (kind, is_shared)


@pytest.mark.parametrize(
    ("kind", "is_shared"),
    [
        ("fuse.glusterfs", True),
        ("fuse.squashfuse_ll", None),
        ("overlay", None),
        ("gpfs", True),
        ("dvs", True),
        ("xfs", False),
    ],
)
def test_a_type_that_does_not_tell_is_neither_shared_nor_local(kind: str, is_shared: bool | None) -> None:
    assert FileSystem(kind=kind, mount_point="/").is_shared is is_shared


def test_the_file_system_of_a_folder_to_be_made_is_that_of_the_folder_above(tmp_path: Path) -> None:
    assert existing_part(tmp_path / "a" / "b") == tmp_path
    assert file_system_of(tmp_path / "a" / "b") == file_system_of(tmp_path)
    assert file_system_of(Path("/proc/self")) == FileSystem(kind="proc", mount_point="/proc")


def test_what_lies_in_a_folder_that_may_not_be_entered_counts_as_not_there(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "in").mkdir(parents=True)
    closed.chmod(0)
    own = os.geteuid()
    try:
        os.seteuid(own or 65534)  # root may enter any
        found = existing_part(closed / "in" / "run")
    finally:
        os.seteuid(own)
        closed.chmod(0o700)
    assert closed.is_relative_to(found)
