"""Runs Slurm's own commands with the same output and effect everywhere.

Invariant: every command has a deadline; what the user's environment says to commands (SQUEUE_FORMAT, SCANCEL_STATE,
SLURM_TIME_FORMAT, ...) changes neither what they print nor what they do. Times are in seconds since the epoch. Asked is
the cluster that `SLURM_CLUSTERS` names, or the one that the caller does.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from rollpacker.core.errors import WorldError
from rollpacker.processes.programs import Outcome, run_program

DEADLINE_S = 10.0
"""A healthy controller answers within a second; Slurm itself would retry for minutes."""


def has_slurm(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this machine has Slurm's commands; most containers have not."""
    return all(shutil.which(name, path=environment.get("PATH")) for name in ("sbatch", "scontrol", "squeue"))


def named_cluster(environment: Mapping[str, str]) -> str:
    """The cluster to which Slurm's commands turn; empty: that of this machine."""
    return environment.get("SLURM_CLUSTERS", "")


def run_slurm(*command: str, cluster: str | None = None) -> Outcome:
    """Run one command of Slurm; a failure is an outcome too.

    Args:
        command: Its program and arguments.
        cluster: To ask; empty for that of this machine. None: as the environment says.

    Raises:
        WorldError: there is no such command here, or it does not answer.
    """
    program = shutil.which(command[0])
    if program is None:
        raise WorldError(
            f"There is no command `{command[0]}` here.",
            "Slurm's commands are on its login and compute nodes, and seldom inside a container.",
            "Go to a login node outside the container, or load the module of Slurm (`module load slurm`).",
        )
    clusters = named_cluster(os.environ) if cluster is None else cluster
    where = [f"--clusters={clusters}"] if clusters and command[0] == "sacct" else []  # the only one not to read it
    environment = _plain(os.environ, clusters)
    outcome = run_program([program, *where, *command[1:]], deadline_s=DEADLINE_S, environment=environment)
    if outcome.exit_code is None:
        raise WorldError(
            f"`{' '.join(command)}` did not answer within {DEADLINE_S:.0f} s.",
            "Slurm's controller (slurmctld) answers within a second when it is healthy.",
            "`scontrol ping` says whether it is up; try again later, or ask the cluster's administrators.",
        )
    return outcome


def ask_slurm(*command: str) -> str:
    """Run one command of Slurm, and return what it printed.

    Raises:
        WorldError: there is no such command here, it does not answer, or it fails.
    """
    outcome = run_slurm(*command)
    if not outcome.is_success:
        raise failure_of(command, outcome)
    return outcome.output


def failure_of(command: tuple[str, ...], outcome: Outcome) -> WorldError:
    """Make the error of a command that failed."""
    return WorldError(
        f"`{' '.join(command)}` failed: {outcome.reason}",
        "It asks Slurm's controller, which has to be reachable from here.",
        "`scontrol ping` says whether it is up; SLURM_CONF, where it is set, has to name this cluster's file.",
    )


def _plain(environment: Mapping[str, str], clusters: str) -> dict[str, str]:
    """Drop what stands for options of commands, and set the formats that we parse and the cluster that is asked."""
    dropped = ("SCONTROL_", "SQUEUE_", "SCANCEL_", "SACCT_", "SINFO_", "SLURM_CLUSTERS")
    kept = {name: value for name, value in environment.items() if not name.startswith(dropped)}
    where = {"SLURM_CLUSTERS": clusters} if clusters else {}
    return {**kept, **where, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
