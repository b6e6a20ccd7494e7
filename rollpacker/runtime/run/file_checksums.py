"""Records the files of a complete folder, so that a later reader notices what is missing or changed.

Of each file it keeps the size, and a CRC-32 of its beginning and its end: a torn, emptied or overwritten file is found
in milliseconds, whatever its format and however large it is. Changes in the middle of a large file are not.
"""

from __future__ import annotations

import os
import zlib
from typing import TYPE_CHECKING

from rollpacker.metrics.read_errors import stop_unless_damaged
from rollpacker.paths import open_to_read

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

END_BYTES = 8 << 20
"""Read at the beginning and at the end of a file: 10 ms, and all of a small file."""

FileRecords = dict[str, tuple[int, int]]
"""Size in bytes and checksum, by the name relative to the folder."""


def record_files(folder: Path) -> FileRecords:
    """Record every file below a folder; an OSError is raised."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): _record(path) for path in files}


def find_change(folder: Path, records: Mapping[str, tuple[int, int]]) -> str | None:
    """Describe the first difference from the records; None without one.

    Raises:
        StorageFailed: A file cannot be read now, and may be as it was.
    """
    for name, record in records.items():
        try:
            found = _record(folder / name)
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            stop_unless_damaged(folder / name, error)
            return f"{name} cannot be read: {error.strerror}"
        if found[0] != record[0]:
            return f"{name} has {found[0]:,} bytes of {record[0]:,}"
        if found != record:
            return f"the content of {name} has changed"
    return None


def _record(path: Path) -> tuple[int, int]:
    with open_to_read(path) as file:  # on a network file system, opening refreshes the size
        size = os.fstat(file.fileno()).st_size
        checksum = zlib.crc32(file.read(END_BYTES))
        file.seek(max(END_BYTES, size - END_BYTES))
        return size, zlib.crc32(file.read(END_BYTES), checksum)
