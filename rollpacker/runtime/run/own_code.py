"""Checksums of the Python files that a configuration names, so that a resumed run tells of one that was edited.

Only the file of each `FILE.py:NAME` or `PACKAGE.MODULE:NAME` counts, not what it imports. Nothing is imported: a module
that only its package's own code can find has no checksum.
"""

from __future__ import annotations

import re
import sys
import zlib
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING

from rollpacker.config.fingerprint import defining_values
from rollpacker.config.sections.reward_checks import NAMED_IN_PYTHON
from rollpacker.paths import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rollpacker.config.schema import RunConfig


def checksums(config: RunConfig) -> dict[str, int]:
    """Give the CRC-32 of each file that can be read, by `FILE.py` or `PACKAGE.MODULE`."""
    found = {}
    for place in dict.fromkeys(_places(config)):
        file = Path(place) if place.endswith(".py") else _file_of(place)
        if file is not None:
            with suppress(OSError):
                found[place] = zlib.crc32(read_bytes(file))
    return found


def _places(config: RunConfig) -> Iterator[str]:
    for value in defining_values(config).values():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and re.fullmatch(NAMED_IN_PYTHON, text):
                yield text.rpartition(":")[0]


def _file_of(module: str) -> Path | None:
    """Where a module lies, which is also looked for in the working directory."""
    folders, origin = [*sys.path, str(Path.cwd())], None
    for part in module.split("."):
        # by its own name: of `a.b`, a folder without __init__.py, the locations would be looked up in the imported `a`
        spec = PathFinder.find_spec(part, folders)
        if spec is None:
            return None
        folders, origin = list(spec.submodule_search_locations or ()), spec.origin
    return Path(origin) if origin else None
