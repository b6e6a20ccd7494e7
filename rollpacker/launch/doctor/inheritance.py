"""What this shell would hand on to a run: variables and files of other Rays, of Slurm, and of proxies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from rollpacker.launch.doctor.findings import Finding, fine, warning

RAY_TOKEN = Path(".ray", "auth_token")
"""Below the home directory: it turns Ray's authentication on for whoever asks for none."""

RAY_SETS = ("RAY_CLIENT_MODE", "0")
"""In every process that imports it, this one too."""


def check_inheritance(environment: Mapping[str, str], *, has_ray_token: bool) -> Iterator[Finding]:
    """Judge them."""
    yield check_ray(environment, has_ray_token=has_ray_token)
    yield check_proxies(environment)
    yield check_exports(environment)


def check_ray(environment: Mapping[str, str], *, has_ray_token: bool) -> Finding:
    """Judge what another Ray left; a run sets its own address and token, and its daemons get none of the rest."""
    names = sorted(name for name, value in environment.items() if name.startswith("RAY_") and (name, value) != RAY_SETS)
    if names:
        return warning(
            "other Rays",
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set",
            f"Ray's daemons do not get them, the driver does: unset {' '.join(names)}",
        )
    return fine("other Rays", "left ~/.ray/auth_token, which is not used" if has_ray_token else "left nothing")


def check_proxies(environment: Mapping[str, str]) -> Finding:
    """Judge proxies: Ray's connections take them, too."""
    values = {name.lower(): value for name, value in environment.items()}
    if not any(values.get(name) for name in ("http_proxy", "https_proxy", "grpc_proxy")):
        return fine("proxies", "none")
    if values.get("no_proxy"):
        return fine("proxies", f"set, but not for {values['no_proxy']}")
    return warning(
        "proxies",
        "set, also for connections between the nodes",
        "Ray's connections may go through the proxy and fail: export no_proxy with the nodes' names and addresses.",
    )


def check_exports(environment: Mapping[str, str]) -> Finding:
    """Judge variables that change what sbatch and srun hand on."""
    found = [
        f"{name}={environment[name]}"
        for name in ("SBATCH_EXPORT", "SLURM_EXPORT_ENV")
        if environment.get(name, "ALL") != "ALL"
    ]
    if not found:
        return fine("environment", "Slurm hands it on to jobs")
    return warning(
        "environment",
        f"{' and '.join(found)}: jobs do not get this shell's variables",
        "Unset it, or name what a run needs in cluster.environment.",
    )
