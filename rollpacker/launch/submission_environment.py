"""The environment of a submission: without the variables of a job or an image in which this process runs."""

from __future__ import annotations

from collections.abc import Mapping

_CONTAINER_WORDS = ("APPNAME", "BIND", "COMMAND", "CONTAINER", "ENVIRONMENT", "NAME")
"""Ends of the names of variables that Apptainer sets inside an image."""


def submission_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Drop the variables of a surrounding job or container, which the new job would take for options."""
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
