from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

import rollpacker
from rollpacker.config.sections.cluster import ClusterSection, ContainerSection
from rollpacker.core.errors import WorldError
from rollpacker.launch.doctor import job_environment
from rollpacker.launch.doctor.findings import problem_of
from rollpacker.launch.doctor.job_environment import (
    Software,
    check_image,
    check_inheritance,
    check_software,
    check_trial,
    gather_software,
)
from rollpacker.launch.doctor.node import check_network
from rollpacker.launch.file_systems import FileSystem
from rollpacker.processes.programs import Outcome
from tests.launch.commands import install_command

SHARED, LOCAL = FileSystem(kind="nfs4", mount_point="/home"), FileSystem(kind="ext4", mount_point="/")
SOFTWARE = Software(
    python_version="3.11.7",
    versions={"ray": "2.60.0", "torch": "2.13.0"},
    places={"python": (Path("/home/me/env"), SHARED), "rollpacker": (Path("/home/me/rollpacker"), SHARED)},
)


@pytest.mark.parametrize(
    ("software", "subject", "level", "words"),
    [
        (replace(SOFTWARE, versions={"ray": None, "torch": "2"}), "python", "problem", "without ray"),
        (
            replace(SOFTWARE, places={"python": (Path("/opt/env"), LOCAL)}),
            "python path",
            "warning",
            "/opt/env on ext4 at /, which only this machine sees",
        ),
        (
            replace(SOFTWARE, places={"python": (Path("/env"), FileSystem(kind="overlay", mount_point="/"))}),
            "python path",
            "warning",
            "may not see",
        ),
    ],
)
def test_python_has_to_be_whole_and_where_the_nodes_find_it(
    software: Software, subject: str, level: str, words: str
) -> None:
    (found,) = (finding for finding in check_software(software, must_be_shared=True) if finding.level != "ok")

    assert (found.subject, found.level) == (subject, level)
    assert words in found.text
    assert found.remedy


def test_a_python_without_a_library_is_told_where_rollpacker_is_installed_from() -> None:
    found = next(check_software(replace(SOFTWARE, versions={"ray": None}), must_be_shared=False))

    assert found.remedy == "Install RollPacker again: pip install . in a checkout of it"


def test_this_python_is_whole() -> None:
    assert [finding.level for finding in check_software(gather_software(), must_be_shared=False)] == ["ok"]
    assert {finding.level for finding in check_software(SOFTWARE, must_be_shared=True)} == {"ok"}


@pytest.mark.parametrize(
    ("environment", "subject", "words"),
    [
        ({"RAY_ADDRESS": "1.2.3.4:6379", "RAY_TMPDIR": "/x"}, "other Rays", "RAY_ADDRESS, RAY_TMPDIR are set"),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "proxies", "between the nodes"),
        ({"SBATCH_EXPORT": "NONE"}, "environment", "SBATCH_EXPORT=NONE: jobs do not get"),
        ({"SLURM_EXPORT_ENV": "NONE"}, "environment", "SLURM_EXPORT_ENV=NONE: what srun starts"),
    ],
)
def test_what_a_shell_hands_on_by_mistake_is_a_warning(environment: dict[str, str], subject: str, words: str) -> None:
    (found,) = (each for each in check_inheritance(environment, has_ray_token=False) if each.level != "ok")

    assert (found.subject, found.level) == (subject, "warning")
    assert words in found.text


def test_a_clean_shell_has_nothing_to_hand_on() -> None:
    set_by_importing_ray = {"RAY_CLIENT_MODE": "0"}
    shell = {"https_proxy": "http://proxy:3128", "no_proxy": "node1", "SBATCH_EXPORT": "A=1,ALL"} | set_by_importing_ray

    findings = list(check_inheritance(shell, has_ray_token=True))

    assert {finding.level for finding in findings} == {"ok"}
    assert "auth_token" in findings[0].text


def test_a_node_without_an_address_a_port_or_a_folder_for_sockets_is_told_by_what_a_run_would_say(
    tmp_path: Path,
) -> None:
    long_path = str(tmp_path / ("x" * 100))
    cluster = ClusterSection(name="c", network_interface="ib7", scratch=("$NOT_SET", long_path))

    address, scratch = check_network("localhost", cluster, {}, is_alone=False)

    assert (address.level, scratch.level) == ("problem", "problem")
    assert "cluster.network_interface=ib7 has no IPv4 address" in address.text
    assert "$NOT_SET is not set" in scratch.text


def test_a_node_by_itself_has_an_address_a_port_and_scratch_and_keeps_nothing(tmp_path: Path) -> None:
    (scratch := Path("/tmp") / f"d{os.getpid()}").mkdir()  # noqa: S108  (a short path, removed below)

    findings = list(check_network("n1", ClusterSection(name="c", scratch=(str(scratch),)), {}, is_alone=True))

    assert [finding.level for finding in findings] == ["ok", "ok", "ok"]
    scratch.rmdir()


def _sandbox(tmp_path: Path) -> Path:
    (tmp_path / "image" / ".singularity.d").mkdir(parents=True)
    return tmp_path / "image"


def test_an_image_that_runs_is_tried_with_its_options_and_the_folders_that_are_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = _sandbox(tmp_path)
    install_command(tmp_path, "apptainer", f'echo "$*" > {tmp_path}/call; echo 0.1.0', monkeypatch)
    variables = {"LD_PRELOAD": "/x.so"}
    venv = f"{tmp_path}:/venv:ro"
    section = ContainerSection(
        image=image,
        options=("--userns",),
        binds=(venv, "/of/a/node"),
        environment=variables,
        python="/venv/bin/python",
    )

    absent, found = check_image(ClusterSection(name="c", container=section))

    assert (absent.level, absent.text) == (
        "warning",
        "/of/a/node of cluster.container.binds is not here: the image is tried without it",
    )
    assert (found.level, found.text) == ("ok", f"apptainer runs {image} with RollPacker 0.1.0")
    assert (
        (tmp_path / "call")
        .read_text()
        .startswith(f"exec --bind={venv} --userns {image} env LD_PRELOAD=/x.so /venv/bin/python -P -c")
    )


def test_the_rollpacker_of_the_current_folder_is_not_taken_for_that_of_the_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = _sandbox(tmp_path)
    (tmp_path / "rollpacker.py").write_text("raise SystemExit('that of the current folder')")
    monkeypatch.chdir(tmp_path)
    install_command(tmp_path, "apptainer", 'shift 2; exec "$@"', monkeypatch)

    (found,) = check_image(ClusterSection(name="c", container=ContainerSection(image=image, python=sys.executable)))

    assert found.text == f"apptainer runs {image} with RollPacker {rollpacker.__version__}"


def test_an_image_that_is_missing_or_fails_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(tmp_path, "apptainer", "echo 'FATAL: container creation failed' >&2; exit 255", monkeypatch)

    (missing,) = check_image(ClusterSection(name="c", container=ContainerSection(image=tmp_path / "no.sif")))
    (failing,) = check_image(ClusterSection(name="c", container=ContainerSection(image=_sandbox(tmp_path))))

    assert (missing.level, failing.level) == ("problem", "problem")
    assert "does not exist" in missing.text
    assert "container creation failed" in failing.text


@pytest.mark.parametrize(
    ("complaint", "exit_code", "has_user_namespaces", "remedy"),
    [
        ("ModuleNotFoundError: No module named 'rollpacker'", 1, True, "again, in a checkout of RollPacker"),
        ("FATAL", 255, False, "user.max_user_namespaces"),
        ("FATAL", 255, True, "Try it by hand: apptainer exec 'my images/x.sif' env TOKEN=... python3 -P"),
        ("", 0, False, "Try it by hand: apptainer exec"),
    ],
)
def test_the_remedy_for_an_image_that_fails_follows_from_what_it_said_and_this_kernel_allows(
    complaint: str, exit_code: int, has_user_namespaces: bool, remedy: str
) -> None:
    section = ContainerSection(image=Path("my images/x.sif"), environment={"TOKEN": "secret"})
    outcome = Outcome(output="", complaint=complaint, exit_code=exit_code)

    found = check_trial(section, outcome, has_user_namespaces=has_user_namespaces)

    assert found.level == "problem"
    assert remedy in found.remedy
    assert "secret" not in found.remedy


@pytest.mark.parametrize(
    ("signal", "fuse", "words"),
    [
        ("URG", os.devnull, ""),
        ("TERM", os.devnull, "cluster.signal=TERM reaches every process"),
        ("URG", "/nowhere", "apptainer build --sandbox FOLDER 'IMAGE'"),
    ],
)
def test_what_ends_or_hinders_a_mount_is_a_warning_for_a_file_and_not_for_an_unpacked_image(
    signal: Literal["URG", "TERM"], fuse: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(job_environment, "_FUSE", Path(fuse))

    def warnings(image: Path) -> str:
        findings = check_image(ClusterSection(name="c", signal=signal, container=ContainerSection(image=image)))
        return "\n".join(f"{each.text}. {each.remedy}" for each in findings if each.level == "warning")

    file = tmp_path / "my image.sif"
    assert not warnings(file), "it is not there"
    file.touch()
    assert words.replace("IMAGE", str(file)) in warnings(file)
    assert bool(words) == bool(warnings(file))
    assert not warnings(_sandbox(tmp_path))


def test_a_runtime_that_a_setup_line_brings_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = _sandbox(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    cluster = ClusterSection(name="c", setup=("module load apptainer",), container=ContainerSection(image=image))

    (found,) = check_image(cluster)

    assert (found.subject, found.level) == ("runtime", "warning")


def test_an_error_of_three_parts_becomes_a_finding_with_its_remedy() -> None:
    found = problem_of("x", WorldError("It broke", "It should not.", "Mend it."))

    assert (found.text, found.remedy) == ("It broke. It should not", "Mend it.")
