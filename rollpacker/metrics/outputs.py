"""What `out=` of a command names: a file, which appears whole, or a stream, which is written to.

    a file, a link to one, a name that is free           replaced by one rename; a link stays
    -, /dev/stdout, /dev/stderr, /dev/fd/N, a FIFO       written to
    a folder, any other device, a socket                 refused

A command replaces a file that exists where it is the command's own default, or by overwrite=true.
Invariant: nothing but a regular file is ever replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rollpacker.core.errors import ConfigError, StorageFailed
from rollpacker.metrics.files import replacing
from rollpacker.paths import kind_of

if TYPE_CHECKING:
    from collections.abc import Iterator

STANDARD_OUTPUT = Path("-")

_STDOUT = 1
_MAX_LINKS = 40
"""As many as Linux follows."""


def check_output(path: Path, *, can_replace: bool = True) -> None:
    """Refuse an `out` that cannot be written to, or may not; to be called before the work that it is for."""
    descriptor = _descriptor(path)
    if descriptor is not None:
        _check_descriptor(path, descriptor)
        return
    try:
        mode = Path(os.path.realpath(path)).lstat().st_mode
    except OSError:
        return  # there is nothing yet, and whether it can be created shows when it is
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode)):
        raise ConfigError(
            f"out={path} is {kind_of(mode)}.",
            "It is a file, a FIFO, or - for standard output.",
            "Choose another out.",
        )
    if stat.S_ISREG(mode) and not can_replace:
        raise ConfigError(
            f"out={path} exists.",
            "A file that exists is replaced only with overwrite=true.",
            "Choose another out, or add overwrite=true.",
        )


def is_stream(path: Path) -> bool:
    """True for what is written to instead of replaced."""
    return _descriptor(path) is not None or Path(os.path.realpath(path)).is_fifo()


def is_standard_output(path: Path) -> bool:
    """True where messages must go elsewhere, because standard output carries the result."""
    return _descriptor(path) == _STDOUT


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[IO[bytes]]:
    """Yield the file or stream to write to; a file appears when the block ends, and not when it raises.

    Raises:
        ConfigError: See `check_output`.
        StorageFailed: It could not be written.
        BrokenPipeError: The reader of a stream has left.
    """
    check_output(path)
    try:
        with _opened(path) as file:
            yield file
    except BrokenPipeError:
        raise
    except OSError as error:
        raise StorageFailed(
            f"out={path} could not be written: {error.strerror or error}.",
            "It is a file, a FIFO, or - for standard output.",
            "Choose another out, or look at its disk and permissions.",
        ) from error


def _opened(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    descriptor = _descriptor(path)
    if descriptor is not None:
        return os.fdopen(os.dup(descriptor), "wb")
    return Path(os.path.realpath(path)).open("wb") if is_stream(path) else replacing(path, durable=True)


def _check_descriptor(path: Path, descriptor: int) -> None:
    try:
        access = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        access = os.O_RDONLY
    if access == os.O_RDONLY:
        raise ConfigError(
            f"out={path} is not open for writing.",
            "A descriptor is opened by the shell: `out=/dev/fd/3 3> FILE`.",
            "Open it, or choose another out.",
        )


def _descriptor(path: Path) -> int | None:
    """The open descriptor of this process that a path stands for; None for what is opened by its name.

    Links are followed one by one: the last one would name what is open, which is never replaced.
    """
    if path == STANDARD_OUTPUT:
        return _STDOUT
    own = os.path.realpath("/proc/self/fd")
    for _ in range(_MAX_LINKS):
        if path.name.isdecimal() and os.path.realpath(path.parent) == own:
            return int(path.name)
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return None
