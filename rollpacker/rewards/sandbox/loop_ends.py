"""Says whether tests catch a `StopIteration` where they call the program, in the sandbox of the tests.

A function that raises it ends a loop silently, if one calls it: `list(map(f, items))` is shorter, and no check fails.
Invariant: it may only where the tests themselves call an object of the program by its name, in a frame that catches the
error there: by `raises`, `assertRaises` or an `except` around the call, or by a `raises` that calls the object.
"""

from __future__ import annotations

from rollpacker.rewards.sandbox.rpc import TESTS_FILE
from rollpacker.rewards.sandbox.values import SOLUTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from types import FrameType

_RAISING = ("raises", "assertRaises", "assertRaisesRegex")
"""Their first argument is the class of errors that they catch."""


def is_caught(source: str, frame: FrameType | None, name: str) -> bool:
    """Whether the nearest frame of the tests calls an object of the program, and catches errors of a name."""
    import ast

    while frame is not None and frame.f_code.co_filename != TESTS_FILE:
        frame = frame.f_back
    if frame is None:
        return False
    nodes = list(ast.walk(ast.parse(source)))
    place = list(frame.f_code.co_positions())[frame.f_lasti // 2]
    calls = [node for node in nodes if isinstance(node, ast.Call) and _place_of(node) == place]
    if any(_catches(call, name) for call in calls):
        return True
    guarded = [part for node in nodes if _catches(node, name) for part in _own_nodes(node)]
    return any(call in guarded and _is_of_program(call.func, frame) for call in calls)


def _place_of(node: ast.expr) -> tuple[int | None, ...]:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset


def _catches(node: ast.AST, name: str) -> bool:
    """Whether a `with`, a `try` or a call catches errors of a name."""
    import ast

    match node:
        case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function), args=[kind, *_]):
            return function in _RAISING and _names(kind, name)
        case ast.With(items=items):
            return any(_catches(item.context_expr, name) for item in items)
        case ast.Try(handlers=handlers):
            return any(each.type is not None and _names(each.type, name) for each in handlers)
    return False


def _names(node: ast.AST, name: str) -> bool:
    import ast

    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def _own_nodes(block: ast.AST) -> Iterator[ast.AST]:
    """Give what the body of a block runs in its own frame."""
    import ast

    left = list(getattr(block, "body", []))
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.GeneratorExp):
            left += ast.iter_child_nodes(node)


def _is_of_program(function: ast.expr, frame: FrameType) -> bool:
    """Whether what is called is an object of the program, or a method of one, that has a name."""
    import ast

    while isinstance(function, ast.Attribute):
        function = function.value
    if not isinstance(function, ast.Name):
        return False
    value = frame.f_locals.get(function.id, frame.f_globals.get(function.id))
    return type(value).__module__ == SOLUTION
