"""The configuration that a run was last started with, for those who look at its folder: `config.json`.

Nobody decides by it: a resumed run is held against the fingerprint in `run.json`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollpacker.metrics.files import write_atomically

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.schema import RunConfig

CONFIG_FILE = "config.json"


def write_config(run_dir: Path, config: RunConfig) -> None:
    """Replace what an earlier attempt wrote."""
    write_atomically(run_dir / CONFIG_FILE, (json.dumps(config.model_dump(mode="json"), indent=1) + "\n").encode())


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """Read every section by its name; None when the run is older than this file, or the file is broken."""
    try:
        plain = json.loads((run_dir / CONFIG_FILE).read_text())
    except (OSError, ValueError):
        return None
    return plain if isinstance(plain, dict) else None
