"""Resolves names that Python tests use and do not define: to the response, or to the standard library.

    assert set(pairs(3)) == set()      pairs: the response's        set: Python's
    assert math.isclose(root(2), 1)    root: the response's         math: the standard library's, of the tests' own

Invariant: only the prompt decides, never a response. So no response can put a function of its own in the place of one
that its tests compare with. A builtin name is the response's only where the prompt says so (`entry_point`, or `from
solution import sum`) or no other name could be: `assert sum(10, 15) == 6` tests a function `sum`.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import symtable
import sys
from collections.abc import Sequence
from dataclasses import dataclass

SOLUTION = "solution"
"""The module that tests import the response as."""

_OFTEN_UNIMPORTED = (
    *("typing", "math", "collections", "copy", "datetime", "decimal", "fractions", "functools", "heapq", "itertools"),
    "statistics",
)
"""Modules whose public names tests may use without an import, since the prompt's program has one. The first counts."""


class NotOneMeaning(Exception):
    """The tests use names that could be the response's as well as Python's; its text is one of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The imports that tests lack."""

    of_response: tuple[str, ...]
    modules: tuple[str, ...]
    of_library: tuple[tuple[str, str], ...]
    """Module and name."""

    def imports(self) -> str:
        """Write them as lines of Python."""
        lines = [f"import {name}" for name in self.modules]
        lines += [f"from {module} import {name}" for module, name in self.of_library]
        lines += [f"from {SOLUTION} import {name}" for name in self.of_response]
        return "\n".join(lines)


def find_names(trees: Sequence[ast.Module], sources: Sequence[str], entry_point: str | None) -> Names:
    """Find the imports that the tests of one prompt lack; `trees` are the parsed `sources`.

    Raises:
        NotOneMeaning: A name could be either's.
    """
    nodes = [node for tree in trees for node in ast.walk(tree)]
    free = {name for source in sources for name in _free_names(source) if not name.startswith("__")} - _by_star(nodes)
    used_bare = _names_used_bare(nodes)
    modules = {name for name in free - used_bare - {entry_point} if name in sys.stdlib_module_names or name == "pytest"}
    rest = free - modules - _BUILTINS
    library = {name: module for name, module in _library().items() if name in rest and name != entry_point}
    rest -= library.keys()
    if not _imports_solution(nodes) and entry_point not in free:
        if not rest:
            rest, library = set(library), {}
        elif unclear := sorted(name for name, module in library.items() if module != "typing"):
            raise NotOneMeaning(unclear[0])
        if not rest:
            rest = _called(nodes) & free & _BUILTINS
            if len(rest) > 1:
                raise NotOneMeaning(min(rest))
    if entry_point in free:
        rest.add(entry_point)
    return Names(
        of_response=tuple(sorted(rest)),
        modules=tuple(sorted(modules)),
        of_library=tuple(sorted((module, name) for name, module in library.items())),
    )


_BUILTINS = frozenset(dir(builtins))


def imported_modules(tree: ast.Module) -> set[str]:
    """Top-level names of the modules that a text imports, but where it tries to."""
    found: set[str] = set()
    left: list[ast.AST] = [tree]
    while left:
        match left.pop():
            case ast.Import(names=aliases):
                found |= {alias.name.partition(".")[0] for alias in aliases}
            case ast.ImportFrom(module=str(name)):
                found.add(name.partition(".")[0])
            case ast.Try():
                pass
            case node:
                left += ast.iter_child_nodes(node)
    return found


def uses_solution(trees: Sequence[ast.Module], names: Names) -> bool:
    """Whether the tests take anything from the response."""
    return bool(names.of_response) or _imports_solution([node for tree in trees for node in ast.walk(tree)])


def _free_names(source: str) -> set[str]:
    """Names that are looked up among the globals, and that no statement of the text binds there."""
    top = symtable.symtable(source, "tests", "exec")
    loaded: set[str] = set()
    bound: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        for symbol in table.get_symbols():
            if (symbol.is_assigned() or symbol.is_imported()) and (table is top or symbol.is_declared_global()):
                bound.add(symbol.get_name())
            is_looked_up = symbol.is_global() or table.get_type() in {"module", "class"}
            if symbol.is_referenced() and is_looked_up:
                loaded.add(symbol.get_name())
        tables += table.get_children()
    return loaded - bound


def _names_used_bare(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that are used other than by an attribute, so that they are no modules."""
    before_dots = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in before_dots}


def _called(nodes: Sequence[ast.AST]) -> set[str]:
    return {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}


def _imports_solution(nodes: Sequence[ast.AST]) -> bool:
    return any(
        (isinstance(node, ast.ImportFrom) and node.module == SOLUTION and node.names[0].name != "*")
        or (isinstance(node, ast.Import) and any(alias.name == SOLUTION for alias in node.names))
        for node in nodes
    )


def _by_star(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that `from math import *` and its like bind."""
    modules = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"}
    return {name for module in modules.intersection(_OFTEN_UNIMPORTED) for name in _public_names(str(module))}


@functools.cache
def _library() -> dict[str, str]:
    """The module of each name that tests may use unimported."""
    found: dict[str, str] = {}
    for module_name in _OFTEN_UNIMPORTED:
        for name in _public_names(module_name):
            if name not in _BUILTINS:
                found.setdefault(name, module_name)
    return found


def _public_names(module_name: str) -> list[str]:
    module = importlib.import_module(module_name)
    return getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
