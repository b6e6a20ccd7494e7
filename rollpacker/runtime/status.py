"""Where a run stands, for those who look at its folder: `status.json`.

Written atomically when an attempt begins, after every step, and when it ends; an attempt that was killed leaves
`running` behind, and whoever reads it asks Slurm whether that is still so.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rollpacker.metrics.files import write_atomically

STATUS_FILE = "status.json"

State = Literal["running", "finished", "departed", "failed", "interrupted"]
"""`departed`: it left its machines with a checkpoint, and goes on when it is started again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """What `status.json` holds."""

    state: State
    attempt: int
    finished_steps: int
    """Of all attempts."""
    num_steps: int
    reason: str
    """Why it departed or failed; empty otherwise."""
    job_id: str | None
    """Of Slurm."""
    host: str
    updated_at: float
    """Seconds since the epoch."""


def write_status(run_dir: Path, status: RunStatus) -> None:
    """Replace the status of a run."""
    write_atomically(run_dir / STATUS_FILE, (json.dumps(asdict(status), indent=1) + "\n").encode())


def read_status(run_dir: Path) -> RunStatus | None:
    """Read the status of a run; None when it never began, or when an older or newer version wrote it."""
    try:
        return RunStatus(**json.loads((run_dir / STATUS_FILE).read_text()))
    except (OSError, ValueError, TypeError):
        return None
