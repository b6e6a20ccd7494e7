"""A sandbox shows Python and nothing that lies beside it, wherever Python is."""

import os
import shutil
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

from rollpacker.core.errors import WorldError
from rollpacker.rewards.sandbox import interpreter
from rollpacker.rewards.sandbox.interpreter import find_interpreter_files
from tests.rewards.sandbox.programs import reasons_of

TIME_ZONES = sysconfig.get_config_var("TZPATH").split(":")

TOLD = "4711"
ONE = {"test_cases": [{"input": "", "output": TOLD}]}
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
LEFT_OUT = (
    "site-packages",
    "dist-packages",
    "test",
    "idlelib",
    "lib2to3",
    "ensurepip",
    "tkinter",
    "config-*",
    "pydoc_data",
)


def reading(path):
    return f"print(open({str(path)!r}).read())"


@pytest.fixture
def outside_tmp():
    """One that the sandbox's own /tmp does not hide."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def python_of_ones_own(for_anybody, monkeypatch):
    """A copy of this interpreter as an environment under /tmp, with data beside libraries and packages."""
    prefix = for_anybody / "env"
    library = prefix / "lib" / PYTHON
    shutil.copytree(Path(os.__file__).parent, library, ignore=shutil.ignore_patterns(*LEFT_OUT), symlinks=True)
    (prefix / "bin").mkdir()
    shutil.copy(os.path.realpath(sys._base_executable), prefix / "bin" / PYTHON)
    for path in Path(sys.base_prefix, "lib").glob("libpython*"):
        shutil.copy(path, prefix / "lib", follow_symlinks=False)
    (library / "site-packages").mkdir()
    places = [prefix / "lib" / "data", prefix / "data", library / "site-packages" / "data", for_anybody / "data"]
    for place in places:
        place.write_text(TOLD)
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{prefix}/lib")
    monkeypatch.setattr(sys, "executable", f"{prefix}/bin/{PYTHON}")
    monkeypatch.setattr(sys, "_base_executable", f"{prefix}/bin/{PYTHON}")
    return places


async def test_python_under_tmp_runs_programs_and_data_beside_it_cannot_be_read(python_of_ones_own, tmp_path):
    programs = [
        f"import ssl, sqlite3, ctypes, math; print({TOLD!r})",
        f"import sys; assert sys.prefix in {str(python_of_ones_own[0])!r}; print({TOLD!r})",
        *(reading(place) for place in python_of_ones_own),
    ]
    reasons = await reasons_of(tmp_path, [(ONE, each) for each in programs])
    assert reasons == ["correct"] * 2 + ["error"] * len(python_of_ones_own)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("LD_LIBRARY_PATH", "{folder}"),
        ("LD_LIBRARY_PATH", "/:/var/tmp:.:"),
        ("PYTHONPATH", "{folder}:{given}"),
        ("PATH", "{folder}:{given}"),
        ("HOME", "{folder}"),
        ("TMPDIR", "{folder}"),
    ],
)
async def test_a_folder_that_a_variable_names_is_not_in_the_sandbox(
    variable, value, outside_tmp, tmp_path, monkeypatch
):
    (outside_tmp / "data").write_text(TOLD)
    monkeypatch.setenv(variable, value.format(folder=outside_tmp, given=os.environ.get(variable, "")))
    cases = [(ONE, f"print({TOLD!r})"), (ONE, reading(outside_tmp / "data"))]
    assert await reasons_of(tmp_path, cases) == ["correct", "error"]


async def test_packages_can_be_imported_wherever_they_are_also_under_tmp(for_anybody, tmp_path):
    (for_anybody / "packages").mkdir()
    (for_anybody / "packages" / "own.py").write_text(f"secret = {TOLD!r}")
    (for_anybody / "data").write_text(TOLD)
    cases = [(ONE, "import own; print(own.secret)"), (ONE, reading(for_anybody / "data"))]
    assert await reasons_of(tmp_path, cases, packages=for_anybody / "packages") == ["correct", "error"]


@pytest.mark.skipif(not any(Path(each, "UTC").exists() for each in TIME_ZONES), reason="Python has no time zones")
async def test_a_program_knows_time_zones(tmp_path):
    program = f"import zoneinfo; zoneinfo.ZoneInfo('Europe/Paris'); print({TOLD!r})"
    assert await reasons_of(tmp_path, [(ONE, program)]) == ["correct"]


def test_what_is_needed_is_files_but_for_the_standard_library_and_the_systems_libraries():
    needed = find_interpreter_files()
    folders = {path for path in needed.paths if Path(path).is_dir()}
    system = {os.path.realpath(path) for path in ("/usr/lib", "/usr/lib64", "/lib", "/lib64", *TIME_ZONES)}
    library = os.path.realpath(Path(os.__file__).parent)
    assert folders - system <= {library, f"{library}/lib-dynload"}
    assert all(target in needed.paths for _, target in needed.links)


def test_libraries_that_load_too_slowly_are_the_worlds_failure(monkeypatch):
    monkeypatch.setattr(interpreter, "_PROBE_LIMIT_S", 0.0)
    with pytest.raises(WorldError, match="did not load its libraries within 0 s"):
        find_interpreter_files()
