"""What this process is in when it submits: perhaps a job, perhaps an image. The new job is to inherit neither."""

from __future__ import annotations

from collections.abc import Mapping

_CONTAINER_WORDS = ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
"""What Apptainer tells in variables of its own to those inside an image."""


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop what a surrounding job or container says of itself, which the job's own would take for its options."""
    dropped = {f"{runtime}_{word}" for runtime in surrounding_images(environment) for word in _CONTAINER_WORDS}
    kept = ("SLURM_CONF", "SLURM_CLUSTERS")
    return {
        name: value
        for name, value in environment.items()
        if name in kept or not (name.startswith("SLURM_") or name in dropped)
    }


def surrounding_images(environment: Mapping[str, str]) -> dict[str, str]:
    """The image that this process runs in, by the name of each runtime that says so."""
    return {
        runtime: environment[f"{runtime}_CONTAINER"]
        for runtime in ("APPTAINER", "SINGULARITY")
        if f"{runtime}_CONTAINER" in environment
    }
