"""Where the processes that a run starts find packages."""

import shutil
import subprocess
import venv
from pathlib import Path

import pytest

import rollpacker

FILES = ("__init__.py", "processes/__init__.py", "processes/package_modules.py")
SHOW_PATH = "from rollpacker.processes.package_modules import path_of_package; print(path_of_package())"


@pytest.mark.parametrize("variables", [{}, {"PYTHONPATH": "/my/forks:/more"}], ids=["none", "PYTHONPATH"])
def test_an_installed_package_comes_after_what_the_user_put_before_its_neighbours(
    variables: dict[str, str], tmp_path: Path
) -> None:
    venv.create(tmp_path, symlinks=True)
    [packages] = tmp_path.glob("lib/python3*/site-packages")
    for name in FILES:
        (packages / "rollpacker" / name).parent.mkdir(exist_ok=True)
        shutil.copy(Path(rollpacker.__file__).parent / name, packages / "rollpacker" / name)
    shown = subprocess.check_output(
        [tmp_path / "bin/python", "-P", "-c", SHOW_PATH], env=variables, cwd=tmp_path, text=True
    )
    assert shown.strip().split(":") == [*filter(None, variables.get("PYTHONPATH", "").split(":")), str(packages)]
