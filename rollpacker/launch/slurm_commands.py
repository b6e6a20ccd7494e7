"""Asks Slurm's own commands, so that they answer the same everywhere.

Invariant: every question has a deadline; what the user's environment says about formats (SQUEUE_FORMAT, SACCT_FORMAT,
SLURM_TIME_FORMAT, ...) changes no answer. Times are asked for in seconds since the epoch.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from rollpacker.core.errors import WorldError

DEADLINE_S = 10.0
"""A controller that answers does so within a second; Slurm itself would go on asking for minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """How one command ended."""

    output: str
    complaint: str
    """What it said on stderr."""
    exit_code: int


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether this machine has Slurm's commands; a container mostly has not."""
    return all(shutil.which(name, path=environment.get("PATH")) for name in ("sbatch", "scontrol", "squeue"))


def run_slurm(*words: str) -> Answer:
    """Run one command of Slurm; one that fails is an answer, too.

    Raises:
        WorldError: there is no such command here, or it does not answer.
    """
    program = shutil.which(words[0])
    if program is None:
        raise WorldError(
            f"There is no command `{words[0]}` here.",
            "Slurm's commands are on its login and compute nodes, and mostly not inside a container.",
            "Go to a login node outside the container, or load the module that brings Slurm (`module load slurm`).",
        )
    try:
        done = subprocess.run(  # noqa: S603  (Slurm's own commands, without a shell)
            [program, *words[1:]],
            env=_plain(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise WorldError(
            f"`{' '.join(words)}` did not answer within {DEADLINE_S:.0f} s.",
            "Slurm's controller (slurmctld) answers within a second when it is well.",
            "`scontrol ping` says whether it is up; try again later, or ask those who run the cluster.",
        ) from None
    return Answer(output=done.stdout, complaint=done.stderr.strip(), exit_code=done.returncode)


def ask_slurm(*words: str) -> str:
    """Run one command of Slurm, and return what it printed.

    Raises:
        WorldError: there is no such command here, it does not answer, or it fails.
    """
    answer = run_slurm(*words)
    if answer.exit_code:
        raise failure_of(words, answer)
    return answer.output


def failure_of(words: tuple[str, ...], answer: Answer) -> WorldError:
    """Make the error of a command that failed."""
    said = answer.complaint.splitlines()[-1] if answer.complaint else f"exit code {answer.exit_code}"
    return WorldError(
        f"`{' '.join(words)}` failed: {said}",
        "It asks Slurm's controller, which has to be reachable from here.",
        "`scontrol ping` says whether it is up; SLURM_CONF, where it is set, has to name this cluster's file.",
    )


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop what would change a command's format, and set what we read."""
    kept = {name: value for name, value in environment.items() if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
