"""The wheel as a user installs it: what it puts into site-packages, and commands that run without the checkout."""

from __future__ import annotations

import os
import site
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which has to hold all that a wheel is made of."""
    dist = tmp_path_factory.mktemp("dist")
    _run(ROOT / ".venv/bin/uv", "build", "--no-build-isolation", "--python", sys.executable, "--out-dir", dist, ROOT)
    [built] = dist.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment with the wheel; what it depends on is lent by the environment of the tests."""
    environment = tmp_path_factory.mktemp("installed")
    _run(sys.executable, "-m", "venv", "--without-pip", environment)
    python = environment / "bin/python"
    _run(ROOT / ".venv/bin/uv", "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    [packages] = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text("\n".join(site.getsitepackages()))
    return environment / "bin"


def test_the_wheel_puts_one_name_of_ours_beside_hydras_plugins(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as files:
        names = files.namelist()
    top = {name.partition("/")[0] for name in names}
    assert {name for name in top if not name.endswith(".dist-info")} == {"rollpacker", "hydra_plugins"}
    for file in (*ROOT.glob("analysis/**/*"), *ROOT.glob("conf/**/*")):
        if file.is_file() and file.suffix != ".pyc":
            assert f"rollpacker/{file.relative_to(ROOT)}" in names
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["analysis", "list"], "e2e_performance"),
        (["analysis", "--help"], "rollpacker analysis table2 backend=sim"),
        (["demo", "--help"], "rollpacker demo mixed"),
        (["plan", "--help"], "rollpacker plan gpus=N"),
    ],
    ids=" ".join,
)
def test_an_installed_command_runs_without_the_checkout(
    installed: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    assert said in _run(installed / "rollpacker", *words, cwd=tmp_path)


def test_an_installed_module_is_that_of_the_wheel(installed: Path, tmp_path: Path) -> None:
    script = "import rollpacker.analysis.command as command; print(command.__file__)"
    assert _run(installed / "python", "-c", script, cwd=tmp_path).startswith(str(installed.parent / "lib"))


def _run(*words: str | Path, cwd: Path | None = None) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
