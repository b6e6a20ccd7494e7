"""Completes the Python tests of a prompt, so that they run, and refuses those that cannot.

Texts of assertions use the response's functions without importing them; HumanEval's define `check(candidate)` without
calling it, and use functions that its prompts define. All of that is added as source. So what the sandbox runs takes
from the response nothing but what it imports from `solution`.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

from rollpacker.data.jsonl import JsonLine
from rollpacker.data.one_process import TestsError
from rollpacker.data.runnable_tests import check_tests, lacks_call_of_check
from rollpacker.data.tested_names import SOLUTION, NotOneMeaning, find_names, imported_modules, uses_solution

_OWN_MODULES = {SOLUTION, "pytest", "__future__"}


class PythonTests(NamedTuple):
    """The tests of one prompt."""

    sources: tuple[str, ...]
    """As they run."""
    packages: tuple[str, ...]
    """Modules that they import beyond the standard library."""


def read_tests(line: JsonLine, texts: Sequence[tuple[str, str]], entry_point: str | None) -> PythonTests:
    """Complete the tests of one prompt, given as pairs of the field and the text.

    Raises:
        DataError: One of them is not Python, checks nothing, tests nothing of the response, or needs what a sandbox
            cannot give.
    """
    places = [where for where, _ in texts]
    sources = [source for _, source in texts]
    trees = [_parse(line, where, source) for where, source in texts]
    for index, tree in enumerate(trees):
        if entry_point is not None and lacks_call_of_check(tree):
            sources[index] += f"\n\ncheck({entry_point})\n"  # as HumanEval's graders do
            trees[index] = _parse(line, places[index], sources[index])
    try:
        names = find_names(trees, sources, entry_point)
        helpers = _helpers(line.fields.get("prompt"), entry_point, set(names.of_response))
        if helpers:
            sources = [_with_head(source, tree, helpers) for source, tree in zip(sources, trees, strict=True)]
            trees = [_parse(line, where, source) for where, source in zip(places, sources, strict=True)]
            names = find_names(trees, sources, entry_point)
    except NotOneMeaning as unclear:
        raise line.error(
            f"`{places[0]}` uses `{unclear}`, which may be the response's or Python's own",
            "Allowed: names that the tests import, as in `from solution import f` or `from math import isclose`, or a "
            "field `entry_point` that says what is tested",
            f"Import `{unclear}` in the tests, from `solution` or from where it is meant to come",
        ) from None
    for where, tree in zip(places, trees, strict=True):
        try:
            check_tests(tree, response_names={*names.of_response, *_imported_names(tree)})
        except TestsError as error:
            raise line.error(f"`{where}`: {error.problem}", error.allowed, error.remedy) from None
    if not uses_solution(trees, names):
        raise line.error(
            f"`{places[0]}` tests nothing of the response",
            "Allowed: tests that use a name of the response, or import it from `solution`",
            "Correct the tests, or leave out the prompt",
        )
    head = names.imports()
    return PythonTests(
        sources=tuple(_with_head(source, tree, head) for source, tree in zip(sources, trees, strict=True)),
        packages=tuple(
            sorted({name for tree in trees for name in imported_modules(tree)} - sys.stdlib_module_names - _OWN_MODULES)
        ),
    )


def _parse(line: JsonLine, where: str, source: str) -> ast.Module:
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source)
            compile(tree, where, "exec")  # some mistakes are found only here, such as `return` outside a function
    except SyntaxError as error:
        problem = f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        problem = str(error)
    else:
        return tree
    raise line.error(
        f"`{where}` is not Python: {problem}",
        f"Allowed: tests in Python {sys.version_info.major}.{sys.version_info.minor}",
        "Correct the tests, or leave out the prompt",
    )


def _with_head(source: str, tree: ast.Module, head: str) -> str:
    """Put statements before all others but those of `__future__`, which come first."""
    if not head:
        return source
    futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    position = futures[-1].end_lineno if futures else 0
    lines = source.split("\n")
    return "\n".join([*lines[:position], head, *lines[position:]])


def _helpers(prompt: object, entry_point: str | None, wanted: set[str]) -> str:
    """Give the functions that a prompt of HumanEval's form defines before the one to complete.

    The tests compare with these functions, so a response must not define them. Blank where the tests use none.
    """
    if not isinstance(prompt, str) or entry_point is None or wanted <= {entry_point}:
        return ""
    try:
        body = ast.parse(prompt).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    before, last = body[:-1], body[-1:]
    if not (last and isinstance(last[0], ast.FunctionDef) and last[0].name == entry_point):
        return ""
    defined = {node.name for node in before if isinstance(node, ast.FunctionDef)}
    return ast.unparse(ast.Module(body=before, type_ignores=[])) if wanted & defined else ""


def _imported_names(tree: ast.Module) -> set[str]:
    """Names that a text imports from the response."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == SOLUTION
        for alias in node.names
    }
