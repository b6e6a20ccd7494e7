"""The phases between the start of a process and its first step, and their durations: `startup.json`.

It is beside the logs of each attempt. A submitted run's `job.json` has the time of submission; until the process
starts, the time is Slurm's. Where one process runs the points of a multirun one after the other, the first phase of a
point includes all points before it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from rollpacker.metrics.files import write_atomically

STARTUP_FILE = "startup.json"
_STARTTIME_FIELD = 19
"""Of /proc/self/stat, counted after the parenthesised name: clock ticks since the machine booted."""


class StartupTimes:
    """Phases follow one another without a gap; the first one begins with the process."""

    def __init__(self, folder: Path, *, began_at: float, now: Callable[[], float]) -> None:
        """Begin with the phase that ends when this is made.

        Args:
            folder: Where the file goes.
            began_at: When the process began; seconds since the epoch.
            now: The time, also since the epoch.
        """
        self._file = folder / STARTUP_FILE
        self._now = now
        self._phases: list[tuple[str, float]] = [("starting Python and validating the run", began_at)]

    def begin(self, phase: str) -> None:
        """End the last phase and begin another one."""
        self._phases.append((phase, self._now()))

    def finish(self) -> None:
        """End the last phase: the first step begins. Write the file."""
        ended_at = self._now()
        began_at = self._phases[0][1]
        total_s = ended_at - began_at
        durations = [
            (name, next_at - phase_at)
            for (name, phase_at), (_, next_at) in pairwise([*self._phases, ("the first step", ended_at)])
        ]
        content = {
            "process_began_at": began_at,
            "first_step_at": ended_at,
            "total_s": round(total_s, 3),
            "phases": [
                {"phase": name, "duration_s": round(duration_s, 3), "share": round(duration_s / total_s, 3)}
                for name, duration_s in durations
            ],
        }
        write_atomically(self._file, (json.dumps(content, indent=1) + "\n").encode())


def process_began_at() -> float:
    """When this process began, in seconds since the epoch."""
    fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    after_boot_s = int(fields[_STARTTIME_FIELD]) / os.sysconf("SC_CLK_TCK")
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + after_boot_s
