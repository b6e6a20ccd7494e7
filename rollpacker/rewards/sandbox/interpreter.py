"""The files of this machine that Python needs to run: its program, its standard library, shared libraries, time zones.

Invariant: the only folders are those of the standard library, the system's libraries and its time zones, which hold
nothing of a user. Other library folders may be the user's (a conda environment's, one of LD_LIBRARY_PATH) and hold any
file. So the interpreter is run once to list the files that it maps when it loads everything of the standard library,
and these are listed one by one.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollpacker.core.errors import WorldError
from rollpacker.processes.programs import run_program

_SYSTEM_FOLDERS = ("/usr/lib", "/usr/lib64", "/lib", "/lib64")

_TIME_ZONES = tuple(filter(None, (sysconfig.get_config_var("TZPATH") or "").split(":")))
"""What `zoneinfo` reads, unless a user's variable says otherwise."""

_RUNTIMES = ("libstdc++.so.6", "libgcc_s.so.1", "libgomp.so.1", "libgfortran.so.5", "libquadmath.so.0")
"""Runtimes of compilers: the end of a thread needs one, compiled packages the others."""

_PROBE_LIMIT_S = 60.0
"""To load some hundred files from a slow file system, on a busy node."""

_PROBE = (
    "import ctypes,sys\n"
    "for name in sys.argv[1:]:\n"
    "    try: ctypes.CDLL(name)\n"
    "    except OSError: pass\n"
    "print(open('/proc/self/maps').read())\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InterpreterFiles:
    """The files that a sandbox shows."""

    program: str
    paths: Sequence[str]
    """Files and folders, including the program; none is inside another."""
    links: Sequence[tuple[str, str]]
    """Paths by which libraries are opened, and their targets."""
    hidden: Sequence[str]
    """Folders in them to hide: installed packages."""
    library_path: str
    """For LD_LIBRARY_PATH."""


def find_interpreter_files() -> InterpreterFiles:
    """Find the files of this process's interpreter.

    Raises:
        WorldError: It does not start, or is too slow.
    """
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    modules = [folder for folder in sys.path if folder.endswith("lib-dynload")]
    folders = [*_SYSTEM_FOLDERS, *_TIME_ZONES, str(Path(os.__file__).parent), *modules]
    found = _outermost([os.path.realpath(folder) for folder in folders if Path(folder).is_dir()])
    libraries = [path for path in _loaded_files(program, modules) if not _is_in(path, found)]
    searched = [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder.startswith("/")]
    links = _links_to(libraries, [*dict.fromkeys([*map(_folder_of, libraries), *searched])])
    named = {_folder_of(path) for path in [*libraries, *(link for link, _ in links)]}
    return InterpreterFiles(
        program=program,
        paths=_outermost([program, *found, *libraries]),
        links=[(link, target) for link, target in links if not _is_in(link, found)],
        hidden=[path for folder in found for path in _package_folders(folder)],
        library_path=":".join(folder for folder in searched if folder in named),
    )


def _loaded_files(program: str, modules: Sequence[str]) -> list[str]:
    """Give the real paths of all shared libraries."""
    names = [str(path) for folder in modules for path in sorted(Path(folder).glob("*.so"))]
    probe = run_program([program, "-s", "-S", "-P", "-c", _PROBE, *names, *_RUNTIMES], deadline_s=_PROBE_LIMIT_S)
    if probe.exit_code is None:
        raise WorldError(f"{program} did not load its libraries within {_PROBE_LIMIT_S:g} s")
    if not probe.is_success:
        raise WorldError(f"{program} does not start: {probe.complaint or probe.reason}")
    columns = [line.split(maxsplit=5) for line in probe.output.splitlines()]
    mapped = dict.fromkeys(each[5] for each in columns if len(each) == 6 and "x" in each[1])  # noqa: PLR2004 with a path
    return [path for path in mapped if path.startswith("/") and path != program]


def _links_to(libraries: Sequence[str], folders: Sequence[str]) -> list[tuple[str, str]]:
    """Give other paths of libraries."""
    paths = [entry.path for folder in folders if Path(folder).is_dir() for entry in os.scandir(folder)]
    targets = {path: os.path.realpath(path) for path in paths}
    return [(path, target) for path, target in targets.items() if target in libraries and path != target]


def _folder_of(path: str) -> str:
    return path.rpartition("/")[0]


def _outermost(paths: Sequence[str]) -> list[str]:
    """Leave out paths inside others, and duplicates."""
    return [path for path in dict.fromkeys(paths) if not _is_in(path, paths)]


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)


def _package_folders(folder: str) -> list[str]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    parents = ("", f"{version}/", "python3/")
    names = [f"{parent}{name}" for parent in parents for name in ("site-packages", "dist-packages")]
    return [path for name in names if Path(path := f"{folder}/{name}").is_dir()]
