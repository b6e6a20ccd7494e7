"""What the process of an environment sees of this machine: few variables, and under bubblewrap little else.

There it has namespaces of its own (`rollpacker.rewards.sandbox.namespaces`) and sees the file system
read-only. Its home, /tmp, /var/tmp and /run are folders of its own in memory: there lie keys of a user, and sockets by
which services take orders. Of what is there it sees only what Python and the environment are made of, read-only; a run
that would have to show such a folder as a whole is refused.

A user who is the machine's root stays it, without its capabilities: to map that user into a namespace takes one that
root in a container lacks.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import rollpacker
from rollpacker.core.errors import ConfigError
from rollpacker.processes.package_modules import path_of_package, path_without_package
from rollpacker.processes.programs import run_program
from rollpacker.rewards.sandbox.namespaces import (
    is_real_root,
    namespace_options,
    no_start,
    require_bubblewrap,
    start_error,
)

_PASSED = frozenset(
    {
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "TOKENIZERS_PARALLELISM", "XDG_CACHE_HOME", "HF_HOME"),
        *(
            "HF_ENDPOINT",
            "HF_HUB_CACHE",
            "HF_DATASETS_CACHE",
            "HF_HUB_OFFLINE",
            "HF_DATASETS_OFFLINE",
            "TRANSFORMERS_OFFLINE",
        ),
    }
)
_PASSED_FAMILIES = ("LC_", "PYTHON")
"""Variables that every environment gets, and the beginnings of others' names."""

_SCRATCH = "/tmp"  # noqa: S108 the environment's own
_PRIVATE = (_SCRATCH, "/var/tmp", "/run")  # noqa: S108 hidden

_SCRATCH_BYTES = 1 << 30
"""That it may write to its home, and to each of these folders, in memory: a browser's profile, a compiler's files."""

_RESOLVER = Path("/etc/resolv.conf")
"""Names servers of host names; often a link to /run."""

_SETTING = "environment.isolation"

_PLACES = "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, *sys.path]))"

_PROBE_LIMIT_S = 60.0
"""For an interpreter to start from a slow file system, on a busy node."""


def variables_of_environment(passed: Sequence[str], python: str | None) -> dict[str, str]:
    """Give the variables of its process: no keys, and nothing of Ray and Slurm, but what is named.

    Args:
        passed: Names of other variables, which are set.
        python: Another interpreter than this one.

    Raises:
        ConfigError: One of them is not set.
    """
    for name in passed:
        if name not in os.environ:
            raise ConfigError(
                f"environment.pass_variables has {name}, which is not set.",
                "It names variables of the run's process that environments get, too.",
                f"Export {name} before the run, or leave it out.",
            )
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED or name in passed or name.startswith(_PASSED_FAMILIES)
    }
    kept["PYTHONPATH"] = path_of_package() if python is None else path_without_package()
    return {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **kept}


def bubblewrap_command(
    variables: Mapping[str, str], python: str | None, readable: Sequence[Path], *, has_network: bool
) -> list[str]:
    """Give the words before those that run an environment's process, which has tried them.

    Args:
        variables: Of its process.
        python: Its interpreter; None is this one.
        readable: What it needs beside Python, this package and the working directory.
        has_network: Whether it may use the network.

    Raises:
        UserError: It cannot start here.
    """
    require_bubblewrap(_SETTING, "environments")
    program = python or sys.executable
    needed = [*readable, Path.cwd(), Path(rollpacker.__file__).parent, Path(program), *_places_of(program, variables)]
    needed += [*_caches(variables), *([_RESOLVER] if has_network else [])]
    command = [
        *namespace_options(has_network=has_network, keeps_user=is_real_root()),
        *("--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"),
        *_mounts(_private_folders(variables), needed),
        *("--setenv", "TMPDIR", _SCRATCH, "--chdir", str(Path.cwd()), "--"),
    ]
    if failure := start_error([*command, program, "-c", ""], variables):
        raise no_start(_SETTING, "environments", failure)
    return command


def _private_folders(variables: Mapping[str, str]) -> list[str]:
    folders = [*_PRIVATE, *([variables["HOME"]] if "HOME" in variables else [])]
    found = {os.path.realpath(folder) for folder in folders if Path(folder).is_dir()}
    return sorted(found - {"/"})


def _mounts(private: Sequence[str], needed: Sequence[Path]) -> Iterator[str]:
    """Hide the private folders, and show what is needed of them.

    Raises:
        ConfigError: One would be shown as a whole.
    """
    for folder in private:
        yield from ("--size", str(_SCRATCH_BYTES), "--tmpfs", folder)
    links: dict[str, str] = {}
    shown: dict[str, None] = {}
    for path in needed:
        if os.path.exists(path):  # noqa: PTH110 what is too long for a path is none
            links |= _links_to(path.absolute())
            shown[os.path.realpath(path)] = None
    hidden: list[str] = []
    for each in sorted(shown):
        if _is_in(each, private) and not _is_in(each, hidden):
            _require_apart(each, private)
            hidden.append(each)
            yield from ("--ro-bind", each, each)
    for link, target in links.items():
        if _is_in(link, private) and not _is_in(link, hidden):
            yield from ("--symlink", target, link)


def _require_apart(needed: str, private: Sequence[str]) -> None:
    """Refuse to show all of a private folder."""
    for folder in private:
        if Path(folder).is_relative_to(needed):
            raise ConfigError(
                f"environment.isolation=bubblewrap, and environments need {needed}: they would see all of {folder}.",
                f"Of the home, {', '.join(_PRIVATE)} they see folders in it alone: the working directory, and those of "
                "Python and of what environment.env, tools, loop and arguments name.",
                "Start the run in a folder of its own, with such files in one, or set environment.isolation=rlimits "
                "where environments are trusted.",
            )


def _links_to(path: Path) -> dict[str, str]:
    """Symbolic links by which a path leads to its file, and their targets."""
    found: dict[str, str] = {}
    for part in [*reversed(path.parents), path]:
        if part.is_symlink():
            folder = os.path.realpath(part.parent)
            target = str(part.readlink())
            found[f"{folder}/{part.name}"] = target
            found |= _links_to(Path(os.path.normpath(f"{folder}/{target}" if target[0] != "/" else target)))
    return found


def _is_in(path: str, folders: Sequence[str]) -> bool:
    return any(Path(path).is_relative_to(folder) for folder in folders)


def _places_of(program: str, variables: Mapping[str, str]) -> list[Path]:
    """Folders in which an interpreter finds what it imports."""
    try:
        probe = run_program([program, "-P", "-c", _PLACES], deadline_s=_PROBE_LIMIT_S, environment=variables)
        failure = "" if probe.is_success else (probe.complaint or probe.reason).rstrip(".")
        places: list[str] = [] if failure else json.loads(probe.output)
    except (OSError, ValueError) as error:
        failure = str(error)
    if failure:
        raise ConfigError(
            f"environment.python={program} does not start: {failure}.",
            "It is the Python of an environment that has what this one needs, such as DIR/bin/python.",
            "Correct it.",
        )
    libraries = variables.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return [Path(place) for place in [*places, *libraries] if place]


def _caches(variables: Mapping[str, str]) -> list[Path]:
    """Folders of models and data sets of Hugging Face; not what is beside them, a user's token."""
    caches = Path(variables.get("XDG_CACHE_HOME") or Path(variables.get("HOME", "/"), ".cache"))
    folder = Path(variables.get("HF_HOME") or caches / "huggingface")
    named = {"hub": variables.get("HF_HUB_CACHE"), "datasets": variables.get("HF_DATASETS_CACHE")}
    return [Path(place or folder / name) for name, place in named.items()]
