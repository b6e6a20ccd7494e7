"""Asks Slurm's own commands, so that they answer the same everywhere.

Invariant: every question has a deadline; what the user's environment says about formats (SQUEUE_FORMAT, SACCT_FORMAT,
SLURM_TIME_FORMAT, ...) changes no answer. Times are asked for in seconds since the epoch.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from rollpacker.core.errors import WorldError
from rollpacker.launch.programs import Outcome, run_program

DEADLINE_S = 10.0
"""A controller that answers does so within a second; Slurm itself would go on asking for minutes."""


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether this machine has Slurm's commands; a container mostly has not."""
    return all(shutil.which(name, path=environment.get("PATH")) for name in ("sbatch", "scontrol", "squeue"))


def run_slurm(*words: str) -> Outcome:
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
    outcome = run_program([program, *words[1:]], deadline_s=DEADLINE_S, environment=_plain(os.environ))
    if outcome.exit_code is None:
        raise WorldError(
            f"`{' '.join(words)}` did not answer within {DEADLINE_S:.0f} s.",
            "Slurm's controller (slurmctld) answers within a second when it is well.",
            "`scontrol ping` says whether it is up; try again later, or ask those who run the cluster.",
        )
    return outcome


def ask_slurm(*words: str) -> str:
    """Run one command of Slurm, and return what it printed.

    Raises:
        WorldError: there is no such command here, it does not answer, or it fails.
    """
    outcome = run_slurm(*words)
    if not outcome.is_success:
        raise failure_of(words, outcome)
    return outcome.output


def failure_of(words: tuple[str, ...], outcome: Outcome) -> WorldError:
    """Make the error of a command that failed."""
    return WorldError(
        f"`{' '.join(words)}` failed: {outcome.reason}",
        "It asks Slurm's controller, which has to be reachable from here.",
        "`scontrol ping` says whether it is up; SLURM_CONF, where it is set, has to name this cluster's file.",
    )


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop what would change a command's format, and set what we read."""
    kept = {name: value for name, value in environment.items() if not name.startswith(("SQUEUE_", "SACCT_", "SINFO_"))}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
