"""Keeps standard output and standard error usable.

A stream that the caller has closed (`>&-`) is opened on /dev/null. Where the reader has ended, the terminal is closed,
or the disk is full, output is dropped and the process continues (`keep_writing`). Where the output is a command's
result, a full disk is an error.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from typing import TYPE_CHECKING, Literal, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_STDERR = 2


def open_closed_streams() -> None:
    """Open streams that the caller has closed; otherwise a file opened later would get their output."""
    for number in range(_STDERR + 1):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    sys.stdout = sys.stdout or _text(io.FileIO(1, "w", closefd=False))
    sys.stderr = sys.stderr or _text(io.FileIO(_STDERR, "w", closefd=False))


def keep_writing(name: Literal["stdout", "stderr"], *, is_result: bool = False) -> None:
    """Drop what `sys.stdout` or `sys.stderr` refuses; a stream that was replaced stays as it is.

    What is a command's result is dropped only where its reader has ended, or its terminal is closed.
    """
    stream: TextIO = getattr(sys, name)
    if stream is not getattr(sys, f"__{name}__"):
        return
    with contextlib.suppress(OSError):
        stream.flush()
    setattr(sys, name, _text(_Dropping(stream.fileno(), is_result=is_result), like=stream))


class _Dropping(io.FileIO):
    """Writes what can be written."""

    def __init__(self, number: int, *, is_result: bool) -> None:
        super().__init__(number, "w", closefd=False)
        self._is_result = is_result
        self._when_unread = {errno.EPIPE, errno.EIO} if self.isatty() else {errno.EPIPE}  # EIO: a terminal is closed

    def write(self, data: ReadableBuffer) -> int:
        size = memoryview(data).nbytes
        try:
            num_written = super().write(data)
        except OSError as error:
            if self._is_result and error.errno not in self._when_unread:
                raise
            return size
        return size if num_written is None else num_written


def _text(raw: io.FileIO, like: TextIO | None = None) -> TextIO:
    encoding, errors = (like.encoding, like.errors) if like else ("utf-8", "replace")
    return io.TextIOWrapper(io.BufferedWriter(raw), encoding=encoding, errors=errors, line_buffering=True)
