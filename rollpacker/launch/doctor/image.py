"""The image of a job: whether it is there, and the runtime can run Python in it here.

On a login node a runtime may be missing that `cluster.setup` brings on the nodes; run the doctor in a job then.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollpacker.config.sections.cluster import ClusterSection, ContainerSection
from rollpacker.launch.container import check_container, container_notes
from rollpacker.launch.doctor.findings import Finding, fine, problem, problem_of, warning
from rollpacker.launch.programs import run_program

_DEADLINE_S = 120.0
"""The first run of an image on a node may have to read it from a cold file system."""

_ASK_VERSION = "import rollpacker; print(rollpacker.__version__)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageTrial:
    """What came of running Python in the image."""

    version: str
    """Of RollPacker in it; empty when it failed."""
    complaint: str
    has_user_namespaces: bool
    """Whether this kernel lets ordinary users make them, which a runtime without setuid needs."""
    can_mount: bool
    """Whether /dev/fuse can be opened, with which such a runtime mounts an image that is one file."""


def check_image(cluster: ClusterSection) -> Iterator[Finding]:
    """Judge the image, and try it where its runtime is."""
    section = cluster.container
    if section.image is None:
        return
    mistakes = check_container(section, cluster.setup)
    yield from (problem_of("image", mistake) for mistake in mistakes)
    for note in container_notes(section, cluster.signal):
        text, _, remedy = note.rpartition(". ")
        yield warning("image", text, remedy)
    if mistakes:
        return
    if shutil.which(section.runtime) is None:
        yield warning(
            "runtime",
            f"{section.runtime} is not here",
            "cluster.setup may bring it on the nodes: run `rollpacker doctor` in a job after these lines to see.",
        )
    else:
        yield judge_trial(section, try_image(section))


def judge_trial(section: ContainerSection, trial: ImageTrial) -> Finding:
    """Judge what came of it."""
    if trial.version:
        return fine("runtime", f"{section.runtime} runs {section.image} with RollPacker {trial.version}")
    if "rollpacker" in trial.complaint and "ModuleNotFound" in trial.complaint:
        remedy = (
            "Build the image anew (slurm/build_image.sh), or name its right interpreter by cluster.container.python."
        )
    elif not trial.has_user_namespaces:
        remedy = "This kernel keeps user namespaces from you (user.max_user_namespaces): ask for a setuid installation."
    elif not trial.can_mount and section.image is not None and section.image.is_file():
        remedy = f"Without /dev/fuse, unpack the image: {section.runtime} build --sandbox FOLDER {section.image}"
    else:
        remedy = f"Try it by hand: {' '.join(_words(section))}"
    return problem("runtime", f"{section.runtime} does not run {section.image}: {trial.complaint}", remedy)


def try_image(section: ContainerSection) -> ImageTrial:
    """Run Python in the image, once."""
    outcome = run_program([*_words(section), "-c", _ASK_VERSION], deadline_s=_DEADLINE_S)
    return ImageTrial(
        version=outcome.output.strip() if outcome.is_success else "",
        complaint="" if outcome.is_success else outcome.reason,
        has_user_namespaces=_allows_user_namespaces(Path("/proc/sys")),
        can_mount=os.access("/dev/fuse", os.R_OK | os.W_OK),
    )


def _words(section: ContainerSection) -> list[str]:
    return [section.runtime, "exec", *section.options, str(section.image), section.python]


def _allows_user_namespaces(settings: Path) -> bool:
    """Ask the kernel; Debian and Ubuntu have switches of their own."""
    switches = ("user/max_user_namespaces", "kernel/unprivileged_userns_clone")
    return all(_value(settings / name) != "0" for name in switches)


def _value(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
