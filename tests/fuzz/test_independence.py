"""The oracle shares no computation with what it checks."""

import ast
from pathlib import Path

import pytest

DATA = ("commands", "events", "ids", "settings", "elastic_settings", "tail_escalation_settings")
ALLOWED = tuple(f"rollpacker.core.{name}" for name in DATA)
"""Of the package: modules that hold data and decide nothing."""

ORACLE = sorted((Path(__file__).parent / "oracle").glob("*.py"))


def imported_modules(node):
    """All modules that a piece of code imports, except those that only annotations need."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.ImportFrom(module=module):
                yield module
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case _:
                yield from imported_modules(child)


@pytest.mark.parametrize("path", ORACLE, ids=lambda path: path.name)
def test_the_oracle_imports_events_commands_ids_and_settings_of_the_package_and_nothing_else(path):
    modules = list(imported_modules(ast.parse(path.read_text())))
    assert "rollpacker" not in modules, "a package gives access to all of its modules"
    assert all(module in ALLOWED for module in modules if module.startswith("rollpacker."))
