"""One image for all tests, really built from Singularity.def by Apptainer: a Debian base, torch for CPUs, unpacked.

It has no vLLM, which would make it half as large again, and no test of the image needs one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.requirement import cannot_run

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "slurm/build_image.sh"
EXTRAS = "trackers,megatron"
EXEC_OPTIONS = ("--userns",)
"""Root in a container may lack what Apptainer needs to run as root. It runs as for a plain user then."""

_PROGRAMS = ("apptainer", "mmdebstrap", "newuidmap")
_IMAGE_BYTES = 6 << 30
"""The image itself (2.1 GB), the base, and the temporary copy that Apptainer makes."""
_SPARE_MEMORY_BYTES = 6 << 30
"""What building and the other tests need beside an image in memory."""
_BUILD_TIMEOUT_S = 1200
"""Measured: 100 s, of which 20 s make the base, on two cores that other work kept busy, with uv's cache filled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """What was built, and what the build said."""

    path: Path
    log: str

    def inspect(self, option: str) -> str:
        """What `apptainer inspect` prints."""
        return self._apptainer("inspect", option, self.path)

    def run(self, *words: str) -> str:
        """What the run script prints."""
        return self._apptainer("run", *EXEC_OPTIONS, self.path, *words)

    def execute(self, *words: str, environment: Mapping[str, str] | None = None) -> str:
        """What a command in the image prints, which is called with these variables too."""
        return self._apptainer("exec", *EXEC_OPTIONS, self.path, *words, environment=environment)

    def _apptainer(self, *words: str | Path, environment: Mapping[str, str] | None = None) -> str:
        done = subprocess.run(
            ["apptainer", *words],
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def require_apptainer(folder: Path) -> None:
    """Skip or fail with the reason when this machine cannot build an image in `folder`."""
    if os.geteuid() != 0:
        cannot_run(f"User {os.geteuid()} builds no image here: the base is made by root. Run the tests as root.")
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        cannot_run(f"This machine has no {' and no '.join(missing)}. Install them: bash slurm/install_apptainer.sh")
    free = shutil.disk_usage(folder).free
    if free < _IMAGE_BYTES:
        cannot_run(f"{folder} has {free >> 30} GiB left; an image takes {_IMAGE_BYTES >> 30} GiB while it is built.")


def built_image(folder: Path) -> Iterator[Image]:
    """Build the image, and remove it when the tests are over: pytest keeps folders of the last three sessions.

    It is built in memory where that is large enough: some disks take minutes to forget 60,000 files. Nodes of a mini
    cluster see it if they start afterwards.
    """
    require_apptainer(folder)
    path = folder / "image"
    is_in_memory = _available_memory() > _IMAGE_BYTES + _SPARE_MEMORY_BYTES
    if is_in_memory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_IMAGE_BYTES}", "tmpfs", folder], check=True)
    try:
        done = subprocess.run(
            [BUILD, path, "--base", "debian", "--extras", EXTRAS, "--packages", "libibverbs1"],
            env={**os.environ, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            pytest.fail(f"{BUILD.name} ended with code {done.returncode} and said:\n{done.stdout}", pytrace=False)
        yield Image(path=path, log=done.stdout)
    finally:
        if is_in_memory:
            subprocess.run(["umount", "--lazy", folder], check=True)
        else:
            shutil.rmtree(path, ignore_errors=True)


def _available_memory() -> int:
    """Memory that new processes can have without swapping, in bytes."""
    (line,) = [line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable:")]
    return int(line.split()[1]) * 1024
