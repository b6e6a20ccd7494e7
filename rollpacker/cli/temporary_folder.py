"""The temporary folder of a command: removed with its end, and kept where logs in it say why it failed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollpacker.core.errors import InternalError, WorldError


@contextmanager
def temporary_folder(command: str) -> Iterator[Path]:
    """Make one for a command; what fails through the world, or a bug that its event log shows, names the folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"rollpacker-{command}-"))
    is_kept = False
    try:
        yield folder
    except (WorldError, InternalError) as error:
        is_kept = True
        remedy = f"{error.remedy}\nLogs are kept in {folder}.".strip()
        raise type(error)(error.problem, error.allowed, remedy) from error
    finally:
        if not is_kept:
            shutil.rmtree(folder, ignore_errors=True)
