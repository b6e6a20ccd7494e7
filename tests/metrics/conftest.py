"""Two ways to run out of room for real: a limit on file size (always works) and a small disk (needs root)."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

FileSizeLimit = Callable[[int], AbstractContextManager[None]]


@pytest.fixture
def file_size_limit() -> FileSizeLimit:
    """No file may grow beyond so many bytes within the block: writes fail with EFBIG, as a full disk with ENOSPC."""

    @contextlib.contextmanager
    def limit(num_bytes: int) -> Iterator[None]:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, handler)

    return limit


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False, capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(
            "mounting a small disk needs root; the same behaviour is tested with a file size limit: "
            + mounted.stderr.strip()
        )
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
