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


def test_a_base_of_an_image_is_sought_in_the_callers_folder(tmp_path: Path) -> None:
    (tmp_path / "work/rootfs/etc").mkdir(parents=True)
    put_programs(tmp_path / "bin", {"apptainer": f'echo "$@" >{tmp_path}/called; touch "${{@: -2:1}}"'})
    done = subprocess.run(
        ["bash", ROOT / "slurm/build_image.sh", "image.sif", "--base", "rootfs"],
        cwd=tmp_path / "work",
        env=os.environ | {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert f"BASE={tmp_path}/work/rootfs " in (tmp_path / "called").read_text()
    assert (tmp_path / "work/image.sif").exists()
