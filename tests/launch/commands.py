"""Programs that say what a test wants, in the place of Slurm's and of others."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest


def put_programs(folder: Path, programs: Mapping[str, str]) -> None:
    """Have programs in a folder, by name and what they do in bash."""
    folder.mkdir(exist_ok=True)
    for name, body in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)


def install_command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a command first on the PATH."""
    put_programs(folder, {name: script})
    if os.environ["PATH"].split(":")[0] != str(folder):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
