"""Runs a program of the system to its end.

Invariant: a program has no input and a deadline, no shell is started, and its output is text, whatever bytes come.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a program ended."""

    output: str
    complaint: str
    """Its stderr, without surrounding blanks."""
    exit_code: int | None
    """None: its deadline came first, and it was killed."""

    @property
    def is_success(self) -> bool:
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """Why it failed: the last line of stderr, or the exit code."""
        return self.complaint.splitlines()[-1] if self.complaint else f"exit code {self.exit_code}"


def run_program(command: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run a program; one that fails has an outcome, too.

    Args:
        command: The program and its arguments.
        deadline_s: When it is killed.
        environment: All that it gets; None: this process's.

    Raises:
        OSError: it cannot be started.
    """
    try:
        done = subprocess.run(  # noqa: S603  (no shell, and the arguments are ours or the configuration's)
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=deadline_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Outcome(output="", complaint=f"nothing for {deadline_s:.0f} s", exit_code=None)
    return Outcome(output=done.stdout, complaint=done.stderr.strip(), exit_code=done.returncode)
