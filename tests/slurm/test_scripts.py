"""Every shell script of the repository is read by bash and by shellcheck."""

import shutil
import subprocess
from pathlib import Path

import pytest

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
