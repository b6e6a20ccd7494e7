"""Files that a configuration names: one import for each, however its path is written."""

import pickle
from pathlib import Path

import pytest

from rollpacker.config.python_names import load_named, module_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The working directory, with two files of one name."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text("def score(): ...\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_is_imported_once_however_its_path_is_written(folder):
    Path("link.py").symlink_to("one/mine.py")
    paths = ("one/mine.py", "./one/mine.py", "two/../one/mine.py", folder / "one/mine.py", "link.py")
    assert len({module_of(f"{path}:score") for path in paths}) == 1


def test_functions_of_two_files_of_one_name_are_pickled(folder):
    functions = [load_named(f"{folder / name}/mine.py:score") for name in ("one", "two")]
    assert len({pickle.dumps(each) for each in functions}) == 2
