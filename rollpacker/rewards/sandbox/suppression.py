"""Says whether the end of a `with` of the tests may suppress an error, in the sandbox of the tests.

Where it is the program's, the program decides whether it does, and nothing behind the error runs. Invariant: it may
only where the block is one simple statement, or several before a `raise`, and has no check, nor has its head: no
`assert`, no `raise` but as a statement of its own, no `yield`, nothing that is named as checks are, no function of the
tests, and no call but of methods, imported names and builtins. Nor may it leave something that a later check looks at:
where it names an object of the program, or one of the tests' classes, which may hold one, it has no assignment and no
`return`, and no call has to do with an object of the tests that can change, such as a list.
"""

from __future__ import annotations

from rollpacker.rewards.sandbox.rpc import TESTS, TESTS_FILE
from rollpacker.rewards.sandbox.values import SOLUTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from types import FrameType

_CHECKING = ("assert", "check", "expect", "fail", "raises", "verify")
"""How names begin of what checks something."""

_LASTING = {
    *("type", "module", "builtin_function_or_method", "function", "NoneType", "bool", "int", "float", "str", "bytes"),
}
"""Types of what no call changes, by name."""


def skips_no_check(source: str, frame: FrameType) -> bool:
    """Whether the `with` that a frame is leaving is one of the tests, whose block has no check."""
    import ast

    nodes = list(ast.walk(ast.parse(source)))
    blocks = [
        node
        for node in nodes
        if isinstance(node, ast.With | ast.AsyncWith)
        and node.lineno <= frame.f_lineno <= max(node.lineno, node.body[0].lineno - 1)
    ]
    functions = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return (
        frame.f_code.co_filename == TESTS_FILE
        and bool(blocks)
        and all(map(_is_short, blocks))
        and not any(
            _has_check(each, functions, _plain_names(nodes)) for block in blocks for each in (*block.items, *block.body)
        )
        and not any(_leaves_something(each, frame) for block in blocks for each in block.body)
    )


def _is_short(block: ast.With | ast.AsyncWith) -> bool:
    """Whether nothing of a block is left to run behind the error, but for its own."""
    import ast

    is_last = len(block.body) == 1 or isinstance(block.body[-1], ast.Raise)
    return is_last and not any(hasattr(each, "body") for each in block.body)


def _plain_names(nodes: list[ast.AST]) -> set[str]:
    """Give names that call no code of the tests: builtins, imported names, classes without methods."""
    import ast
    import builtins

    names = set(dir(builtins))
    for node in nodes:
        match node:
            case ast.Import() | ast.ImportFrom():
                names |= {alias.asname or alias.name for alias in node.names}
            case ast.ClassDef() if not any(isinstance(each, ast.FunctionDef | ast.Lambda) for each in ast.walk(node)):
                names.add(node.name)
    return names


def _has_check(statement: ast.AST, functions: set[str], plain: set[str]) -> bool:
    import ast

    for node in ast.walk(statement):
        match node:
            case ast.Assert() | ast.Yield() | ast.YieldFrom():
                return True
            case ast.Raise() if node is not statement:
                return True
            case ast.Call(func=ast.Name(id=name)) if name not in plain:
                return True
            case ast.Call(func=func) if not isinstance(func, ast.Name | ast.Attribute):
                return True
            case ast.Name(id=name) | ast.Attribute(attr=name) if name in functions or name.startswith(_CHECKING):
                return True
    return False


def _leaves_something(statement: ast.AST, frame: FrameType) -> bool:
    """Whether a statement on the program assigns, returns, or calls something with what can change of the tests."""
    import ast

    nodes = list(ast.walk(statement))
    kinds = [_type_of(each.id, frame) for each in nodes if isinstance(each, ast.Name)]
    if not any(kind.__module__ in {SOLUTION, TESTS} for kind in kinds):
        return False
    for node in nodes:
        match node:
            case ast.Return() | ast.Name(ctx=ast.Store()) | ast.Attribute(ctx=ast.Store()):
                return True
            case ast.Subscript(ctx=ast.Store()):
                return True
            case ast.Call() if any(
                isinstance(each, ast.Name) and _can_change(each.id, frame) for each in ast.walk(node)
            ):
                return True
    return False


def _type_of(name: str, frame: FrameType) -> type:
    return type(frame.f_locals.get(name, frame.f_globals.get(name)))


def _can_change(name: str, frame: FrameType) -> bool:
    kind = _type_of(name, frame)
    return kind.__module__ != SOLUTION and kind.__name__ not in _LASTING
