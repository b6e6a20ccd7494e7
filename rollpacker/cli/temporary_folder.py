"""The temporary folder of a command: removed with its end, and kept where logs in it say why it failed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rollpacker.core.errors import Interrupted, Preempted, UserError, WorldError


@contextmanager
def temporary_folder(command: str) -> Iterator[Path]:
    """Make one for a command; what fails through the world is raised with the folder's name."""
    from rollpacker.metrics.files import remove_folder

    folder = Path(tempfile.mkdtemp(prefix=f"rollpacker-{command}-"))
    try:
        yield folder
    except (UserError, Interrupted, Preempted, KeyboardInterrupt):
        remove_folder(folder)
        raise
    except WorldError as error:
        remedy = f"{error.remedy}\nLogs are kept in {folder}.".strip()
        raise type(error)(error.problem, error.allowed, remedy) from error
    remove_folder(folder)
