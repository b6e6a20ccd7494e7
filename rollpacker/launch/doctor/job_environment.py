"""What a job would start with: Python and its libraries, the shell's variables, and the image.

On a login node, a runtime may be missing that `cluster.setup` loads on the nodes; run the doctor in a job then.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import rollpacker
from rollpacker.config.sections.cluster import ClusterSection, ContainerSection
from rollpacker.launch.container import check_container
from rollpacker.launch.doctor.findings import Finding, fine, probe, problem, problem_of, warning
from rollpacker.launch.file_systems import FileSystem, file_system_of
from rollpacker.processes.programs import Outcome, run_program

RAY_TOKEN = Path(".ray", "auth_token")
"""Below the home directory: it turns Ray's authentication on by default."""

RAY_SETS = ("RAY_CLIENT_MODE", "0")
"""In every process that imports it, this one too."""

_LIBRARIES = ("ray", "submitit", "hydra-core", "torch")

_DEADLINE_S = 120.0
"""The first run of an image on a node may have to read it from a cold file system."""

_FUSE = Path("/dev/fuse")
_ASK_VERSION = "import rollpacker; print(rollpacker.__version__)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """The interpreter and libraries that a run uses."""

    python_version: str
    versions: Mapping[str, str | None]
    """Of libraries; None: not installed."""
    places: Mapping[str, tuple[Path, FileSystem]]
    """Where the interpreter and the package lie."""


def gather_software() -> Software:
    """Read the versions and paths of this interpreter."""
    paths = {"python": Path(sys.prefix), "rollpacker": Path(rollpacker.__file__).parent}
    return Software(
        python_version=platform.python_version(),
        versions={name: _version(name) for name in _LIBRARIES},
        places={name: (path, file_system_of(path)) for name, path in paths.items()},
    )


def check_software(software: Software, *, must_be_shared: bool) -> Iterator[Finding]:
    """Check the libraries, and their file systems where other nodes have to find them there."""
    missing = [name for name, version in software.versions.items() if version is None]
    versions = ", ".join(f"{name} {version}" for name, version in software.versions.items() if version)
    text = f"{software.python_version}, {versions}"
    install = "Install RollPacker again: pip install . in a checkout of it"
    yield probe("python", text, (bool(missing), "problem", f"{text}; without {', '.join(missing)}", install))
    for name, (path, file_system) in software.places.items() if must_be_shared else ():
        sees = "the nodes may not see" if file_system.is_shared is None else "only this machine sees"
        yield probe(
            f"{name} path",
            f"{path} on {file_system}",
            (
                not file_system.is_shared,
                "warning",
                f"{path} on {file_system}, which {sees}",
                (
                    "Jobs run this very path on their nodes. Unless each has a copy there, install into a shared "
                    "folder, or run in an image (hydra.launcher.container=IMAGE). `rollpacker doctor` in a job shows "
                    "it."
                ),
            ),
        )


def check_inheritance(environment: Mapping[str, str], *, has_ray_token: bool) -> Iterator[Finding]:
    """Check what this shell passes on: variables of another Ray, proxies, and what sbatch and srun leave out.

    A run sets its own address and token for Ray, and Ray's daemons get none of the rest; its connections take proxies.
    """
    names = sorted(name for name, value in environment.items() if name.startswith("RAY_") and (name, value) != RAY_SETS)
    yield probe(
        "other Rays",
        "left ~/.ray/auth_token, which is not used" if has_ray_token else "left no settings",
        (
            bool(names),
            "warning",
            f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} set",
            f"Ray's daemons do not get them, the driver does: unset {' '.join(names)}",
        ),
    )
    values = {name.lower(): value for name, value in environment.items()}
    has_proxy = any(values.get(name) for name in ("http_proxy", "https_proxy", "grpc_proxy"))
    yield probe(
        "proxies",
        f"set, but not for {values.get('no_proxy')}" if has_proxy else "none",
        (
            has_proxy and not values.get("no_proxy"),
            "warning",
            "set, also for connections between the nodes",
            "Ray's connections may go through the proxy and fail: export no_proxy with the nodes' names and addresses.",
        ),
    )
    exports = {name: environment.get(name, "ALL") for name in ("SBATCH_EXPORT", "SLURM_EXPORT_ENV")}
    is_limited = {name: "ALL" not in value.split(",") for name, value in exports.items()}
    yield probe(
        "environment",
        "Slurm passes it on to jobs",
        (
            is_limited["SBATCH_EXPORT"],
            "warning",
            f"SBATCH_EXPORT={exports['SBATCH_EXPORT']}: jobs do not get this shell's variables",
            "Unset it, or name what a run needs in cluster.environment.",
        ),
        (
            is_limited["SLURM_EXPORT_ENV"],
            "warning",
            f"SLURM_EXPORT_ENV={exports['SLURM_EXPORT_ENV']}: what srun starts does not get this shell's variables",
            "For srun by hand: export SLURM_EXPORT_ENV=ALL. The script of a launched job does that itself.",
        ),
    )


def check_image(cluster: ClusterSection) -> Iterator[Finding]:
    """Check the image, and run it where its runtime is installed."""
    section = cluster.container
    if section.image is None:
        return
    mistakes = check_container(section, cluster.setup)
    yield from (problem_of("image", mistake) for mistake in mistakes)
    if section.image.is_file():
        yield from _check_mount(section, cluster.signal)
    if mistakes:
        return
    if shutil.which(section.runtime) is None:
        yield warning(
            "runtime",
            f"{section.runtime} is not here",
            "cluster.setup may load it on the nodes: run `rollpacker doctor` in a job after these lines.",
        )
    else:
        for bind in section.binds:
            if not _is_here(bind):
                yield warning(
                    "runtime",
                    f"{bind} of cluster.container.binds is not here: the image is tried without it",
                    "A job fails on a node that lacks it.",
                )
        outcome = run_program([*_words(section, section.environment), "-c", _ASK_VERSION], deadline_s=_DEADLINE_S)
        yield check_trial(section, outcome, has_user_namespaces=_allows_user_namespaces())


def check_trial(section: ContainerSection, outcome: Outcome, *, has_user_namespaces: bool) -> Finding:
    """Turn the outcome of Python in the image, which prints RollPacker's version, into a finding.

    Args:
        section: With an image.
        outcome: Of Python in it.
        has_user_namespaces: Whether this kernel allows ordinary users to make them, which a runtime without setuid
            needs.
    """
    if outcome.is_success and (version := outcome.output.strip()):
        return fine("runtime", f"{section.runtime} runs {section.image} with RollPacker {version}")
    by_hand = f"Try it by hand: {shlex.join(_words(section, dict.fromkeys(section.environment, '...')))}"
    if outcome.is_success:
        return problem("runtime", f"{section.python} in {section.image} printed no version of RollPacker", by_hand)
    if "rollpacker" in outcome.reason and "ModuleNotFound" in outcome.reason:
        build = "Build the image again, in a checkout of RollPacker (slurm/build_image.sh)"
        remedy = f"{build}, or set cluster.container.python to its interpreter."
    elif not has_user_namespaces:
        remedy = "This kernel refuses user namespaces (user.max_user_namespaces): ask for a setuid installation."
    else:
        remedy = by_hand
    return problem("runtime", f"{section.runtime} does not run {section.image}: {outcome.reason}", remedy)


def _check_mount(section: ContainerSection, signal: str) -> Iterator[Finding]:
    """Find what may fail on some nodes with an image that is one file, which is mounted there."""
    image = section.image
    if not os.access(_FUSE, os.R_OK | os.W_OK):
        yield warning(
            "image",
            f"{image} is one file, and this machine's {_FUSE} cannot be opened: on nodes like it, only a setuid "
            "runtime can mount it",
            f"Unpack it: {section.runtime} build --sandbox FOLDER {shlex.quote(str(image))}",
        )
    if signal != "URG":
        yield warning(
            "image",
            f"cluster.signal={signal} reaches every process of a job, and where {image} is mounted by FUSE it ends "
            "the mount before the checkpoint is written",
            "Use cluster.signal=URG, or unpack the image.",
        )


def _words(section: ContainerSection, environment: Mapping[str, str]) -> list[str]:
    """Words that run Python in the image. Of `binds` those that are here: a login node may lack a folder of nodes."""
    binds = (f"--bind={bind}" for bind in section.binds if _is_here(bind))
    variables = (f"{name}={value}" for name, value in environment.items())
    image = str(section.image)
    return [section.runtime, "exec", *binds, *section.options, image, "env", *variables, section.python, "-P"]


def _is_here(bind: str) -> bool:
    return os.access(bind.partition(":")[0], os.F_OK)


def _allows_user_namespaces() -> bool:
    """Ask the kernel; Debian and Ubuntu have switches of their own."""
    switches = ("user/max_user_namespaces", "kernel/unprivileged_userns_clone")
    return all(_value(Path("/proc/sys", name)) != "0" for name in switches)


def _value(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
