"""Every shell script of the repository is read by bash and by shellcheck."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.launch.commands import put_programs
from tests.slurm.requirement import cannot_run

ROOT = Path(__file__).parents[2]


def _is_shell_script(file: Path) -> bool:
    first_line, _, _ = file.read_bytes().partition(b"\n")
    return file.suffix == ".sh" or (first_line.startswith(b"#!") and first_line.endswith(b"sh"))


SCRIPTS = sorted(
    file.relative_to(ROOT)
    for folder in ("slurm", ".ci")
    for file in (ROOT / folder).rglob("*")
    if file.is_file() and _is_shell_script(file)
)


def test_there_are_scripts_with_and_without_the_suffix() -> None:
    assert {Path(".ci/run"), Path("slurm/install_packages.sh")} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS, ids=str)
def test_bash_reads_the_script(script: Path) -> None:
    assert subprocess.run(["bash", "-n", ROOT / script], capture_output=True, text=True, check=False).stderr == ""


def test_shellcheck_finds_nothing() -> None:
    if shutil.which("shellcheck") is None:
        cannot_run("This machine has no shellcheck. It reads every script. Install it: make slurm")
    found = subprocess.run(["shellcheck", *SCRIPTS], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stdout == ""


def build_image(folder: Path, **variables: str) -> None:
    """Run slurm/build_image.sh with a program of our own as Apptainer: notes how it is called, and what is lent."""
    (folder / "work/rootfs/etc").mkdir(parents=True)
    note = f'echo "$@" >{folder}/called; cat {folder}/*/lent/environment >{folder}/environment; touch "${{@: -2:1}}"'
    put_programs(folder / "bin", {"apptainer": note})
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    done = subprocess.run(
        ["bash", ROOT / "slurm/build_image.sh", "image.sif", "--base", "rootfs"],
        cwd=folder / "work",
        env=clean | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "TMPDIR": str(folder)} | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_base_of_an_image_is_sought_in_the_callers_folder(tmp_path: Path) -> None:
    build_image(tmp_path)
    assert f"BASE={tmp_path}/work/rootfs " in (tmp_path / "called").read_text()
    assert (tmp_path / "work/image.sif").exists()


OF_PIP = {
    "PIP_CONFIG_FILE": os.devnull,
    "PIP_INDEX_URL": "https://mirror.test/simple",
    "PIP_EXTRA_INDEX_URL": "https://more.test/simple",
}


@pytest.mark.parametrize(
    ("variables", "lent"),
    [
        ({"PIP_CONFIG_FILE": os.devnull}, []),
        (
            OF_PIP,
            [
                "UV_DEFAULT_INDEX=https://mirror.test/simple",
                "UV_INDEX=https://more.test/simple",
                "UV_INDEX_STRATEGY=unsafe-best-match",
            ],
        ),
        (OF_PIP | {"UV_INDEX": "https://own.test/simple"}, ["UV_INDEX=https://own.test/simple"]),
        ({"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "file:///not/in/the/build"}, []),
    ],
    ids=["nothing", "pip's", "uv's own", "folder"],
)
def test_the_registries_of_pip_are_those_of_uv_in_the_build(
    variables: dict[str, str], lent: list[str], tmp_path: Path
) -> None:
    build_image(tmp_path, **variables)
    lines = (tmp_path / "environment").read_text().splitlines()
    assert [line.removeprefix("export ") for line in lines if "export UV_" in line] == lent
