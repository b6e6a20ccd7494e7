"""Runs a program of the system to its end, and says how it ended.

Invariant: whoever runs one here waits neither for a person (it has no input) nor for ever (it has a deadline), starts
no shell, and reads text, whatever bytes come.
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
    """What it said on stderr, without surrounding blanks."""
    exit_code: int | None
    """None: its deadline came first, and it was killed."""

    @property
    def is_success(self) -> bool:
        return self.exit_code == 0

    @property
    def reason(self) -> str:
        """Why it failed: its last words, which mostly say so."""
        return self.complaint.splitlines()[-1] if self.complaint else f"exit code {self.exit_code}"


def run_program(words: Sequence[str], *, deadline_s: float, environment: Mapping[str, str] | None = None) -> Outcome:
    """Run a program; one that fails has an outcome, too.

    Args:
        words: The program and its arguments.
        deadline_s: When it is killed.
        environment: All that it gets; None: this process's.

    Raises:
        OSError: it cannot be started.
    """
    try:
        done = subprocess.run(  # noqa: S603  (no shell, and the words are ours or the configuration's)
            words,
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
