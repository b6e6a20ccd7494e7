"""The Python that runs here, its libraries, and whether the nodes of a job find it at the same path."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import rollpacker
from rollpacker.launch.doctor.findings import Finding, fine, problem, warning
from rollpacker.launch.file_systems import FileSystem, file_system_of

_LIBRARIES = ("ray", "submitit", "hydra-core", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """What would be run."""

    python_version: str
    versions: Mapping[str, str | None]
    """Of libraries; None: not installed."""
    places: Mapping[str, tuple[Path, FileSystem]]
    """Where the interpreter and the package lie."""


def gather_software() -> Software:
    """Look at this interpreter."""
    paths = {"python": Path(sys.prefix), "rollpacker": Path(rollpacker.__file__).parent}
    return Software(
        python_version=platform.python_version(),
        versions={name: _version(name) for name in _LIBRARIES},
        places={name: (path, file_system_of(path)) for name, path in paths.items()},
    )


def check_software(software: Software, *, must_be_shared: bool) -> Iterator[Finding]:
    """Judge the libraries, and where they lie when other nodes have to find them there."""
    yield check_libraries(software)
    if must_be_shared:
        for name, (path, file_system) in software.places.items():
            yield check_place(name, path, file_system)


def check_libraries(software: Software) -> Finding:
    """Judge that everything is installed."""
    missing = [name for name, version in software.versions.items() if version is None]
    text = f"{software.python_version}, " + ", ".join(
        f"{name} {version}" for name, version in software.versions.items() if version
    )
    if missing:
        return problem(
            "python", f"{text}; without {', '.join(missing)}", "Install RollPacker again: pip install rollpacker"
        )
    return fine("python", text)


def check_place(name: str, path: Path, file_system: FileSystem) -> Finding:
    """Judge whether other nodes find the same files at the same path."""
    text = f"{path} on {file_system}"
    if file_system.is_shared:
        return fine(f"{name} path", text)
    sees = "the nodes may not see" if file_system.is_shared is None else "only this machine sees"
    return warning(
        f"{name} path",
        f"{text}, which {sees}",
        "Jobs run this very path on their nodes. Unless each has a copy there, install into a shared folder, or run in "
        "an image (hydra.launcher.container=IMAGE). `rollpacker doctor` in a job shows it.",
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
