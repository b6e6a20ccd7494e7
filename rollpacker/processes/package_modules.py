"""How a module of this package runs in another process: its words, and the path on which Python finds it."""

from __future__ import annotations

import importlib.util
import os
import site
import sys
from pathlib import Path

_WITH_OUR_PACKAGE = """
import importlib.util, runpy, sys
path, module = sys.argv[1:3]
spec = importlib.util.spec_from_file_location("rollpacker", path + "/__init__.py", submodule_search_locations=[path])
sys.modules["rollpacker"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["rollpacker"])
del sys.argv[1:3]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs a module of this package: what lies beside it may be another version than that interpreter needs."""


def words_that_run(module_name: str, python: str | None) -> list[str]:
    """The words that run a module of this package."""
    if python is None:
        return [sys.executable, "-P", "-m", module_name]
    return [python, "-P", "-c", _WITH_OUR_PACKAGE, str(Path(__file__).resolve().parents[1]), module_name]


def environment_of_children() -> dict[str, str]:
    """Give an environment with this package's path, and one thread for numeric libraries."""
    return {**os.environ, "PYTHONPATH": path_of_package(), "OMP_NUM_THREADS": "1"}


def path_of_package() -> str:
    """PYTHONPATH, with this package before all else; last where it is installed, with other packages beside it."""
    roots, inherited = _package_roots(), os.environ.get("PYTHONPATH")
    parts = [*roots, *([inherited] if inherited else [])]
    return os.pathsep.join(reversed(parts) if _installed_packages().issuperset(roots) else parts)


def path_without_package() -> str:
    """PYTHONPATH, without what `path_of_package` added in an outer process: packages of another interpreter."""
    roots = _package_roots()
    return os.pathsep.join(each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in roots)


def _installed_packages() -> set[str]:
    """The folders of packages that this interpreter looks into after PYTHONPATH."""
    return {str(Path(folder).resolve()) for folder in (*site.getsitepackages(), site.getusersitepackages())}


def _package_roots() -> list[str]:
    package = importlib.util.find_spec("rollpacker")
    locations = package.submodule_search_locations if package else None
    return [str(Path(location).resolve().parent) for location in locations or ()]
