"""Commands of Slurm that say what a test wants."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def install_command(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a command first on the PATH."""
    path = folder / name
    path.write_text(f"#!/bin/bash\n{script}\n")
    path.chmod(0o755)
    if os.environ["PATH"].split(":")[0] != str(folder):
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
