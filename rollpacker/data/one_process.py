"""Refuses tests of a text of Python that need the response in their own process.

The tests run in one process and the response in another; only calls and data pass between them (`rewards.sandbox.rpc`).
So what replaces, catches or inspects something of the response there can only fail, or only pass. Classes of the
response are told by their names, which begin with a capital letter; what is made by calling one is its object.
"""

from __future__ import annotations

import ast
import collections.abc
from collections.abc import Iterator

_PYTEST_NAMES = ("approx", "fail", "fixture", "importorskip", "mark", "param", "raises", "skip")
"""What the sandbox's own pytest has; see `rewards/sandbox/mini_pytest.py`."""

ONE_PROCESS = "the tests run in another process than the response"

_IMPOSSIBLE = {
    "patch": f"it replaces names in the tests' process only: {ONE_PROCESS}",
    "redirect_stdout": f"it catches what the tests' process prints only: {ONE_PROCESS}",
    "redirect_stderr": f"it catches what the tests' process prints only: {ONE_PROCESS}",
    "getsource": f"it reads a source that is not there: {ONE_PROCESS}",
    "signature": f"it inspects a function that is not there: {ONE_PROCESS}",
    "FunctionType": f"no function of the response is one in the tests' process: {ONE_PROCESS}",
    "isgeneratorfunction": f"no function of the response is one in the tests' process: {ONE_PROCESS}",
    "isfunction": f"no function of the response is one in the tests' process: {ONE_PROCESS}",
    "isclass": f"no class of the response is one in the tests' process: {ONE_PROCESS}",
    "iscoroutinefunction": f"no function of the response is one in the tests' process: {ONE_PROCESS}",
    "CancelledError": f"no cancellation passes from one to the other: {ONE_PROCESS}",
}
"""Functions of the standard library, by the last part of their name."""

_INSPECTING = ("mock", "contextlib", "inspect", "types", "asyncio")
"""Modules that they are in."""

_STREAMS = ("StringIO", "BytesIO", "open")

_FILES = f"a file is one of the tests' process only: {ONE_PROCESS}"

_REPLACEABLE = {"sys": ("stdin", "stdout", "stderr", "argv"), "builtins": ()}
"""Attributes of modules that tests replace to reach what the response prints or reads; (): any."""

_STATE = f"the response does not see it: {ONE_PROCESS}"

_CATCHING_ASSERTIONS = ("assertWarns", "assertWarnsRegex", "assertLogs", "assertNoLogs")
"""Of unittest; they catch what is warned or logged in their own process."""

_OF_DATACLASSES = ("asdict", "astuple", "fields", "is_dataclass", "replace")
"""Functions of `dataclasses` that look at the class of their argument."""

_ABSTRACT = ("ABC", *collections.abc.__all__)
"""Abstract classes, of which `issubclass` asks for a class, and knows no proxy."""

_RAISING_CALLS = ("raises", "assertRaises", "assertRaisesRegex")
"""Their first argument is a class of errors, which is one in either process."""


class TestsError(Exception):
    """The tests cannot be used; has the three parts of a message."""

    def __init__(self, problem: str, allowed: str, remedy: str) -> None:
        super().__init__(problem)
        self.problem, self.allowed, self.remedy = problem, allowed, remedy


def refuse_impossible(tree: ast.Module, response_names: set[str]) -> None:
    """Refuse what could only pass or only fail between two processes.

    Args:
        tree: The text.
        response_names: Names that it imports from the response.

    Raises:
        TestsError: It has such a thing.
    """
    objects = _Objects(tree, response_names)
    of_libraries = {node for each in tree.body if isinstance(each, ast.Assign | ast.Expr) for node in ast.walk(each)}
    for node in ast.walk(tree):
        _refuse_impossible(node)
        _refuse_streams(node, response_names)
        _refuse_unknown_pytest(node)
        if node not in of_libraries:  # what is set before all tests may be for what they import, as threads of numpy
            _refuse_state(node)
        objects.refuse(node)
        if isinstance(node, ast.ClassDef):
            _refuse_base(node, response_names)
            _refuse_fixtures_of_unittest(node)


def last_name(node: ast.AST) -> str:
    """Give `TestCase` of `unittest.TestCase`."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Call(func=function):
            return last_name(function)
    return ""


def _refuse_impossible(node: ast.AST) -> None:
    name = None
    match node:
        case ast.ImportFrom(module=str(module)) if module.rpartition(".")[2] in _INSPECTING:
            name = next((alias.name for alias in node.names if alias.name in _IMPOSSIBLE), None)
        case ast.Attribute(value=base, attr=last) if last in _IMPOSSIBLE:
            name = last if last_name(base) in _INSPECTING else None
        case ast.Call(func=ast.Name(id="open"), args=[_, ast.Constant(value=str(mode)), *_]) if set(mode) & set("wax+"):
            raise _impossible(f"open(..., {mode!r})", _FILES)
        case ast.Call(func=ast.Attribute(attr="write_text" | "write_bytes" as last)):
            raise _impossible(last, _FILES)
        case ast.Attribute(attr="__context__"):
            raise _impossible("__context__", f"only the cause of an error crosses, its context does not: {ONE_PROCESS}")
        case ast.Attribute(value=ast.Name(id=module), attr=last, ctx=ast.Store()):
            if module in _REPLACEABLE and last in (_REPLACEABLE[module] or (last,)):
                raise _impossible(f"{module}.{last} = ...", f"it reaches the tests' process only: {ONE_PROCESS}")
    if name is not None:
        raise _impossible(name, _IMPOSSIBLE[name])


def _refuse_streams(node: ast.AST, response_names: set[str]) -> None:
    """Refuse files that are handed to the response."""
    match node:
        case ast.Call(func=ast.Name(id=name), args=given) if name in response_names:
            for each in given:
                if isinstance(each, ast.Call) and last_name(each) in _STREAMS:
                    raise _impossible(f"{name}({last_name(each)}(...))", _FILES)


def _refuse_unknown_pytest(node: ast.AST) -> None:
    names: list[str] = []
    match node:
        case ast.ImportFrom(module="pytest"):
            names = [alias.name for alias in node.names]
        case ast.Attribute(value=ast.Name(id="pytest"), attr=last):
            names = [last]
        case ast.Call():
            for keyword in node.keywords:
                if (last_name(node.func), keyword.arg) in {("parametrize", "indirect"), ("fixture", "params")}:
                    raise _impossible(f"{last_name(node.func)}({keyword.arg}=...)", "the sandbox's pytest lacks it")
            if last_name(node.func) in {"skipif", "xfail"}:
                conditions = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "condition")]
                if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in conditions):
                    raise _impossible(ast.unparse(node), "the sandbox's pytest evaluates no condition that is a text")
    for name in names:
        if name not in _PYTEST_NAMES:
            raise _impossible(f"pytest.{name}", f"the sandbox's pytest has {', '.join(_PYTEST_NAMES)}")


def _impossible(what: str, why: str) -> TestsError:
    return TestsError(
        f"it uses `{what}`", f"Not allowed: {why}", "Delete the tests that use it, or leave out the prompt"
    )


def _refuse_base(given: ast.ClassDef, response_names: set[str]) -> None:
    for name in map(last_name, given.bases):
        if name in response_names and not name.endswith(("Error", "Exception")):
            raise TestsError(
                f"its class `{given.name}` inherits from the response's `{name}`",
                f"Not allowed: {ONE_PROCESS}, and only calls and data pass between them",
                "Delete the class, or leave out the prompt",
            )


def _refuse_fixtures_of_unittest(given: ast.ClassDef) -> None:
    if any(last_name(base).endswith("TestCase") for base in given.bases):
        members = [node for node in given.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        for name in (last_name(each) for node in (given, *members) for each in node.decorator_list):
            if name in {"fixture", "usefixtures"}:
                raise _impossible(f"{name} in {given.name}", "the sandbox's unittest has no fixtures of pytest")


def _refuse_state(node: ast.AST) -> None:
    """Refuse what the tests set or catch in their own process, and mean for the response's."""
    match node:
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="os"), attr="environ"), ctx=ast.Store() | ast.Del()):
            raise _impossible("os.environ[...] = ...", _STATE)
        case ast.Call(
            func=ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="os"), attr="environ"),
                attr="update" | "setdefault" | "pop" | "clear" as last,
            )
        ):
            raise _impossible(f"os.environ.{last}", _STATE)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="os"), attr="putenv" | "unsetenv" | "chdir" as last)):
            raise _impossible(f"os.{last}", _STATE)
        case ast.withitem(context_expr=ast.Call(keywords=keywords) as made, optional_vars=ast.expr()):
            if last_name(made) == "catch_warnings" and any(each.arg == "record" for each in keywords):
                raise _impossible("catch_warnings(record=...)", f"it catches warnings of the tests only: {ONE_PROCESS}")
        case ast.Attribute(attr=last) if last in _CATCHING_ASSERTIONS:
            raise _impossible(last, f"it catches what the tests' process warns or logs only: {ONE_PROCESS}")


class _Objects:
    """Tells which names of a text are classes of the response, and which variables its objects."""

    def __init__(self, tree: ast.Module, response_names: set[str]) -> None:
        nodes = list(ast.walk(tree))
        errors = {name for node in nodes for name in _error_names(node)}
        self._names = response_names
        self._classes = {name for name in response_names if _is_name_of_class(name)} - errors
        self._has_dataclass = any(
            last_name(each) == "dataclass"
            for node in nodes
            if isinstance(node, ast.ClassDef)
            for each in node.decorator_list
        )
        self._coroutines = {node.name for node in nodes if isinstance(node, ast.AsyncFunctionDef)}
        self._expects_timeout = any(
            last_name(part) == "TimeoutError"
            for node in nodes
            if isinstance(node, ast.Call) and node.args and last_name(node) in _RAISING_CALLS
            for part in _parts(node.args[0])
        )
        self._variables: set[str] = set()
        for node in nodes:
            match node:
                case ast.Assign(targets=[target], value=value) | ast.withitem(context_expr=value, optional_vars=target):
                    if target is not None and isinstance(value, ast.Call) and self._is_class(value.func):
                        self._variables.add(ast.unparse(target))

    def refuse(self, node: ast.AST) -> None:
        """Refuse what asks for the class of an object that is not there, or awaits across processes."""
        if self._awaits_across(node):
            raise _impossible(
                node.name if isinstance(node, ast.AsyncFunctionDef) else ast.unparse(node),
                f"the response awaits no coroutine of the tests, and no timeout of theirs ends its own: {ONE_PROCESS}",
            )
        what = self._impossible_use(node)
        if what is not None:
            raise _impossible(
                what,
                f"no object of the response is there, only a proxy, which `isinstance` and `==` know: {ONE_PROCESS}",
            )

    def _impossible_use(self, node: ast.AST) -> str | None:  # noqa: PLR0911 the uses
        match node:
            case ast.Compare(left=left, comparators=others) if self._is_class_asked([left, *others]):
                return ast.unparse(node)
            case ast.Call(args=given) if last_name(node).startswith("assert") and self._is_class_asked(given[:2]):
                return ast.unparse(node)
            case ast.Call(func=ast.Name(id="isinstance"), args=[each, ast.Name(id="type")]) if self._is_class(each):
                return ast.unparse(node)
            case ast.Call(func=ast.Name(id="issubclass"), args=[each, kind]) if self._is_class(each):
                return ast.unparse(node) if any(last_name(part) in _ABSTRACT for part in _parts(kind)) else None
            case ast.MatchClass(cls=kind) if self._is_class(kind):
                return ast.unparse(node)
            case ast.ImportFrom(module="dataclasses", names=names) if not self._has_dataclass:
                return next((alias.name for alias in names if alias.name in _OF_DATACLASSES), None)
            case ast.Attribute(value=ast.Name(id="dataclasses"), attr=last) if not self._has_dataclass:
                return last if last in _OF_DATACLASSES else None
            case ast.Call(func=ast.Attribute(value=ast.Name(id="pickle")), args=[each, *_]) if self._is_object(each):
                return ast.unparse(node)
            case ast.Attribute(value=ast.Name(id=name), attr="__code__" | "__globals__" | "__closure__"):
                return ast.unparse(node) if name in self._names else None
        return None

    def _is_class_asked(self, compared: list[ast.expr]) -> bool:
        """Whether the class of something is compared with one of the response."""
        parts = [part for each in compared for part in _parts(each)]
        return any(map(_is_class_of, parts)) and any(map(self._is_class, parts))

    def _is_class(self, node: ast.AST) -> bool:
        match node:
            case ast.Name(id=name):
                return name in self._classes
            case ast.Attribute(value=ast.Name(id="solution"), attr=name):
                return _is_name_of_class(name)
        return False

    def _awaits_across(self, node: ast.AST) -> bool:
        """Whether the response is given a coroutine of the tests, or is to be cancelled by a timeout of theirs."""
        match node:
            case ast.Call(args=[each, *_]) if last_name(node) == "wait_for":
                return self._expects_timeout and self._is_of_response(each)
            case ast.Call(args=given, keywords=named) if self._coroutines and self._is_of_response(node.func):
                names = {last_name(part) for each in (*given, *named) for part in _not_awaited(each)}
                return bool(names & self._coroutines)
            case ast.AsyncFunctionDef(decorator_list=decorators):
                return any(map(self._is_of_response, decorators))
        return False

    def _is_of_response(self, node: ast.AST) -> bool:
        """Whether something is, or comes of, a name of the response or one of its objects."""
        while isinstance(node, ast.Call | ast.Attribute) and ast.unparse(node) not in self._variables:
            node = node.func if isinstance(node, ast.Call) else node.value
        return ast.unparse(node) in {"solution", *self._names, *self._variables}

    def _is_object(self, node: ast.AST) -> bool:
        return self._is_class(node.func) if isinstance(node, ast.Call) else ast.unparse(node) in self._variables


def _is_name_of_class(name: str) -> bool:
    is_constant = len(name) > 1 and name.isupper()
    return name[:1].isupper() and not is_constant and not name.endswith(("Error", "Exception"))


def _is_class_of(node: ast.AST) -> bool:
    match node:
        case ast.Call(func=ast.Name(id="type"), args=[asked]) | ast.Attribute(value=asked, attr="__class__"):
            return not (isinstance(asked, ast.Attribute) and asked.attr == "value")  # of `raises`: an error crosses
    return False


def _parts(node: ast.expr) -> list[ast.expr]:
    """Give what a container that is written out holds, else the expression."""
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def _not_awaited(node: ast.AST) -> Iterator[ast.AST]:
    """Give the nodes of an expression, but for what is awaited in it."""
    left = [node]
    while left:
        each = left.pop()
        if not isinstance(each, ast.Await):
            yield each
            left += ast.iter_child_nodes(each)


def _error_names(node: ast.AST) -> list[str]:
    """Give the classes of errors that a node expects."""
    match node:
        case ast.ExceptHandler(type=ast.expr() as kind):
            return [last_name(each) for each in _parts(kind)]
        case ast.Call(args=[kind, *_]) if last_name(node) in _RAISING_CALLS:
            return [last_name(each) for each in _parts(kind)]
    return []
