"""Files that cannot be read for a while, though they are whole."""

from __future__ import annotations

import errno
import io
import os
from pathlib import Path

import pytest


class _FailingFile(io.FileIO):
    """On a disk that reports an error."""

    def read(self, _size: int = -1, /) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def make_unreadable(monkeypatch: pytest.MonkeyPatch, file: Path, number: int) -> None:
    """Let opening a file fail with an error of this number; with EIO, reading it."""
    opened = Path.open

    def open_or_fail(path: Path, *words: str, **options: str) -> object:
        if path != file:
            return opened(path, *words, **options)
        if number == errno.EIO:
            return _FailingFile(path)
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr(Path, "open", open_or_fail)
