"""The environment of a submission: what sbatch and the new job are told by this process's variables.

Not of a job or an image in which this process runs, and nothing that the script itself says: sbatch prefers a variable
(SBATCH_PARTITION) to a line of the script. What the script leaves open stays the user's or the site's, such as
SBATCH_ACCOUNT; what of it a cluster is compared with, `as_submitted` adds to a shape.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from rollpacker.config.sections.cluster import ClusterSection
from rollpacker.launch.sbatch_script import gpus_in_gres
from rollpacker.launch.shape import JobShape
from rollpacker.launch.site import parse_minutes
from rollpacker.runtime.job.allocation import surrounding_images

_CONTAINER_WORDS = ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
"""Ends of the names of variables that Apptainer sets inside an image."""

_KEPT = frozenset({"SLURM_CLUSTERS", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT"})
"""By which sbatch finds the controller and logs in. It passes them to the job, with SBATCH_EXPORT=NONE, too; the script
drops the token (`rollpacker.launch.sbatch_script.job_environment`)."""

_NEVER = frozenset(
    f"SBATCH_{word}"
    for word in (
        *("ARRAY_INX", "ERROR", "NO_REQUEUE", "REQUEUE", "WAIT"),
        *("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "TRES_PER_TASK"),
    )
)
"""Without a line of the script, too: it is no array then, its errors are in its output, and the run uses no GPUs. An
sbatch that waits for the job's end would leave the job without its call, which takes its name when sbatch has
answered."""

_OPTION_OF = {
    "CPUS_PER_GPU": "cpus-per-task",
    "CPU_FREQ_REQ": "cpu-freq",
    "MEM_PER_CPU": "mem",
    "MEM_PER_GPU": "mem",
    "MEM_PER_NODE": "mem",
    "REQ_SWITCH": "switches",
    "TIMELIMIT": "time",
    "WAIT4SWITCH": "switches",
}
"""What variables set, or count in another way, whose names are not those of an option with SBATCH_ in front."""

_VARIABLE_OF = {
    "partition": "SBATCH_PARTITION",
    "time_limit_min": "SBATCH_TIMELIMIT",
    "qos": "SBATCH_QOS",
    "constraint": "SBATCH_CONSTRAINT",
}
"""What sbatch reads in place of a key of `cluster` that is null."""


def submission_environment(environment: Mapping[str, str], script: str) -> dict[str, str]:
    """Drop what would change the job that `script` asks for, and what is of a surrounding job or container."""
    dropped = {f"{runtime}_{word}" for runtime in surrounding_images(environment) for word in _CONTAINER_WORDS}
    if gpus_in_gres(environment.get("SBATCH_GRES", "")):
        dropped.add("SBATCH_GRES")
    asked = re.findall(r"^#SBATCH --([a-z0-9-]+)", script, re.MULTILINE)
    return {
        name: value
        for name, value in environment.items()
        if name in _KEPT
        or not (name.startswith("SLURM_") or name in dropped or name in _NEVER or _option(name) in asked)
    }


def as_submitted(shape: JobShape, environment: Mapping[str, str]) -> JobShape:
    """Add what sbatch is told by variables where the script says nothing, under the names of these variables."""
    given = given_by_variables(shape.cluster, environment)
    keys = {key: _VARIABLE_OF[key] for key in given}
    return replace(shape, cluster=shape.cluster.model_copy(update=given), keys={**shape.keys, **keys})


def given_by_variables(cluster: ClusterSection, environment: Mapping[str, str]) -> dict[str, str | int | None]:
    """The values of keys of `cluster` that are null, and which `submission_environment` leaves to a variable.

    A time limit may be None there: the variable says that there is none (UNLIMITED).
    """
    given: dict[str, str | int | None] = {}
    for key, variable in _VARIABLE_OF.items():
        nodes = cluster.environment_nodes
        has_line = getattr(cluster, key) is not None or (nodes.num_nodes and getattr(nodes, key, None) is not None)
        text = environment.get(variable)
        if text and not has_line:
            given[key] = _minutes(text) if key == "time_limit_min" else text
    return given


def _minutes(text: str) -> int | None:
    """A time limit; None where it is none, or no time, which sbatch refuses itself."""
    try:
        return parse_minutes(text) or None
    except ValueError:
        return None


def _option(variable: str) -> str:
    """The option of sbatch that a variable stands for; empty for other variables."""
    word = variable.removeprefix("SBATCH_")
    return "" if word == variable else _OPTION_OF.get(word, word.lower().replace("_", "-"))
