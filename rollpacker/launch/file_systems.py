"""Which file system a path lies on, and whether other nodes may see it.

Read from /proc/self/mountinfo. The type is a strong hint, no proof: an ext4 of the login node is not on the compute
nodes, a network's file system probably is, and at the same path. `overlay` and the like hide what lies below.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rollpacker.paths import real_path

_SHARED = frozenset(
    [
        *("9p", "afs", "beegfs", "ceph", "cifs", "daos", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2"),
        *("dvs", "orangefs", "panfs", "pvfs2", "quobyte", "smb3", "virtiofs", "weka", "wekafs"),
    ]
)
_SHARED_BY_FUSE = ("ceph", "daos", "dfuse", "glusterfs", "juicefs", "lustre", "quobyte", "seaweedfs", "sshfs", "weka")
_LOCAL = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "ramfs", "tmpfs", "xfs", "zfs", "vfat", "ntfs"]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSystem:
    """One mount."""

    kind: str
    """As the kernel names it: nfs4, ext4, fuse.glusterfs, ..."""
    mount_point: str

    @property
    def is_shared(self) -> bool | None:
        """Whether other nodes see it, by its type; None when the type does not say."""
        if self.kind in _SHARED or (
            self.kind.startswith("fuse") and any(name in self.kind for name in _SHARED_BY_FUSE)
        ):
            return True
        return False if self.kind in _LOCAL else None

    def __str__(self) -> str:
        return f"{self.kind} at {self.mount_point}"


def file_system_of(path: Path) -> FileSystem:
    """Find the file system of a path, or of what will hold it once it is there."""
    try:
        mounts = parse_mounts(Path("/proc/self/mountinfo").read_text())
    except OSError:  # no Linux
        mounts = ()
    return mount_of(real_path(path), mounts)


def existing_part(path: Path) -> Path:
    """Find the folder in which a path lies, or the nearest one above it that is there already.

    What lies in a folder that may not be entered counts as not there, of which `Path.is_dir` makes an error.
    """
    absolute = path.absolute()
    return next(folder for folder in (absolute, *absolute.parents) if os.path.isdir(folder))  # noqa: PTH112  (see above)


def mount_of(path: Path, mounts: Iterable[FileSystem]) -> FileSystem:
    """Find the deepest mount above an absolute path; of two on each other the later one is seen."""
    found = FileSystem(kind="unknown", mount_point="/")
    for mount in mounts:
        if path.is_relative_to(mount.mount_point) and len(mount.mount_point) >= len(found.mount_point):
            found = mount
    return found


def parse_mounts(text: str) -> tuple[FileSystem, ...]:
    """Parse /proc/self/mountinfo, see proc(5)."""
    lines = (line.partition(" - ") for line in text.splitlines())
    return tuple(FileSystem(kind=kind.split()[0], mount_point=_plain(place.split()[4])) for place, _, kind in lines)


def _plain(text: str) -> str:
    r"""Undo the kernel's spelling of blanks and the like, such as \040."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
