"""Where worlds write their files: in memory where the machine can, because they make many and keep none."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - Linux has it; names below it are made by tempfile


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Give an empty folder that is gone afterwards."""
    root = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="rollpacker-fuzz-", dir=root) as folder:
        yield Path(folder)
