"""Finds the tests in a text of Python and checks whether they can run in a sandbox, from the source alone.

The tests are those of pytest: the module itself, functions `test...`, methods `test...` of classes `Test...` without a
constructor and of `unittest.TestCase`s, own and inherited; and HumanEval's `check(candidate)`, whose call is added.

Invariant: accepted tests have at least one check that would run: an assertion, a `raise`, or a call of what
has one. Text that could only pass, or only fail, whatever the response does, is a `TestsError`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rollpacker.data.one_process import ONE_PROCESS, TestsError, last_name, refuse_impossible

_Function = ast.FunctionDef | ast.AsyncFunctionDef

_CHECKING_CALLS = ("assert", "fail", "raises")
"""How the names of functions of unittest, pytest and numpy begin that check something."""


_CATCHING = ("AssertionError", "Exception", "BaseException")


class _Test(NamedTuple):
    """A function that would run."""

    name: str
    node: _Function | ast.Lambda
    classes: tuple[ast.ClassDef, ...]
    """Its class, then the bases; empty for a function of the module."""
    is_unittest: bool


def check_tests(tree: ast.Module, *, response_names: set[str]) -> None:
    """Refuse a text whose tests would not run, or could only pass or only fail.

    Args:
        tree: The text.
        response_names: Names that it imports from the response.

    Raises:
        TestsError: They cannot be used.
    """
    text = _Text(tree)
    refuse_impossible(tree, response_names)
    tests = list(text.tests())
    for test in tests:
        _refuse_form(test)
        text.refuse_fixtures(test)
    if not any(text.checks(statement) for statement in text.statements) and not any(
        text.checks(test.node) for test in tests
    ):
        raise TestsError(
            f"no test in it would run and check something{text.why_none()}",
            "Allowed: assertions at the top, functions `test...` or classes `Test...` with assertions, as pytest runs "
            "them, a `unittest.TestCase`, or `check(candidate)` with `entry_point`",
            "Rename, call or complete the tests, or leave out the prompt",
        )


def lacks_call_of_check(tree: ast.Module) -> bool:
    """Whether the text defines HumanEval's `check(candidate)`, and calls it nowhere."""
    text = _Text(tree)
    check = text.functions.get("check")
    if check is None or len(check.args.args) != 1:
        return False
    return not any(
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "check"
        for statement in [*text.statements, *(test.node for test in text.tests())]
        for node in ast.walk(statement)
    )


class _Text:
    """The functions and classes of a text, and the statements that run as it is loaded."""

    def __init__(self, tree: ast.Module) -> None:
        self.functions: dict[str, _Function] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self.statements: list[ast.AST] = []
        self._guarded: list[ast.stmt] = []
        self._lambdas: dict[str, ast.Lambda] = {}
        self._named: dict[str, list[ast.AST]] = {}
        """Functions and methods by their bare names: what a call may mean."""
        for node in ast.walk(tree):
            if isinstance(node, _Function):
                self._named.setdefault(node.name, []).append(node)
        self._checks: dict[int, bool] = {}
        self._take(tree.body)

    def tests(self) -> Iterator[_Test]:
        """Give what would be collected."""
        for name, function in {**self.functions, **self._lambdas}.items():
            if name.startswith("test") and not _is_skipped(function) and not _is_fixture(function):
                yield _Test(name, function, (), is_unittest=False)
        for each in self.classes.values():
            yield from self._tests_of(each)

    def checks(self, node: ast.AST) -> bool:
        """Whether something in a node could fail because of a wrong response."""
        if id(node) not in self._checks:
            self._checks[id(node)] = False  # of a function that calls itself
            self._checks[id(node)] = any(map(self._is_check, self._live_nodes(node)))
        return self._checks[id(node)]

    def refuse_fixtures(self, test: _Test) -> None:
        """Refuse a test with arguments that no fixture gives."""
        if test.is_unittest or isinstance(test.node, ast.Lambda):
            return
        fixtures = {_fixture_name(each): each for each in self.functions.values() if _is_fixture(each)}
        for each in reversed(test.classes):
            methods = [node for node in each.body if isinstance(node, _Function)]
            fixtures |= {_fixture_name(node): node for node in methods if _is_fixture(node)}
        given = _parametrized(test.node.decorator_list)
        for each in test.classes:
            given |= _parametrized(each.decorator_list)
        asked = [(test.name, name) for name in _arguments(test.node, is_method=bool(test.classes)) if name not in given]
        known: set[str] = set()
        while asked:
            by, name = asked.pop()
            if name not in fixtures:
                raise TestsError(
                    f"`{by}` takes the argument `{name}`, which no fixture of the text gives",
                    "Allowed: fixtures that the text defines. Those of pytest and its plugins, such as capsys, "
                    f"monkeypatch and tmp_path, cannot be: {ONE_PROCESS}",
                    "Delete the test, or leave out the prompt",
                )
            if name not in known:
                known.add(name)
                wanted = _arguments(fixtures[name], is_method=fixtures[name] not in self.functions.values())
                asked += [(name, each) for each in wanted]

    def why_none(self) -> str:
        """Explain why there is no test."""
        if any(self.checks(node) for node in self._guarded):
            return ": `if __name__ == '__main__'` is false, as it is under pytest"
        for each in self.classes.values():
            if any(self.checks(node) for node in ast.walk(each) if isinstance(node, _Function)):
                if _defines(each, "__init__"):
                    return f": pytest does not collect the class `{each.name}`, which has a constructor"
                return f": pytest does not collect the class `{each.name}`, or skips all of it"
        for name, function in self.functions.items():
            if self.checks(function):
                return f": nothing calls the function `{name}`"
        return ": it has no assertion"

    def _take(self, body: Sequence[ast.stmt], *, is_top: bool = True) -> None:
        for node in body:
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.functions[node.name] = node
                case ast.ClassDef():
                    self.classes[node.name] = node
                case ast.If() if _is_main_guard(node.test):
                    self._guarded += node.body
                    self._take(node.orelse, is_top=is_top)
                case ast.If(test=ast.Constant(value=value)):
                    self._take(node.body if value else node.orelse, is_top=is_top)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda() as function):
                    self._lambdas[name] = function
                case _:
                    if is_top:
                        self.statements.append(node)
                    for part in (node, *getattr(node, "handlers", ())):
                        for name in ("body", "orelse", "finalbody"):
                            self._take(getattr(part, name, ()), is_top=False)

    def _tests_of(self, given: ast.ClassDef) -> Iterator[_Test]:
        bases = tuple(self._lineage(given))
        is_unittest = any(last_name(base).endswith("TestCase") for each in bases for base in each.bases)
        if _is_skipped(given) or not (is_unittest or given.name.startswith("Test")):
            return
        if not is_unittest and any(_defines(each, "__init__") for each in bases):
            return
        seen: set[str] = set()
        for each in bases:
            for node in each.body:
                if isinstance(node, ast.ClassDef) and not is_unittest:
                    yield from self._tests_of(node)
                if isinstance(node, _Function) and node.name not in seen:
                    seen.add(node.name)
                    if (node.name.startswith("test") or (is_unittest and node.name == "runTest")) and not _is_skipped(
                        node
                    ):
                        yield _Test(node.name, node, bases, is_unittest)

    def _lineage(self, given: ast.ClassDef) -> Iterator[ast.ClassDef]:
        """Give the class and what it inherits from in the text, nearest first."""
        left, seen = [given], set()
        while left:
            each = left.pop(0)
            if each.name not in seen:
                seen.add(each.name)
                yield each
                left += [self.classes[name] for name in map(last_name, each.bases) if name in self.classes]

    def _live_nodes(self, node: ast.AST) -> Iterator[ast.AST]:
        """Give the nodes that run with this one, without checks whose failure is caught."""
        left = list(_children(node)) if isinstance(node, _Function | ast.Lambda) else [node]
        while left:
            inner = left.pop()
            yield inner
            match inner:
                case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                    pass  # runs where it is called
                case ast.Try(handlers=handlers) if any(map(self._swallows, handlers)):
                    left += [*handlers, *inner.orelse, *inner.finalbody]
                case ast.With(items=items) if any(last_name(item.context_expr) == "suppress" for item in items):
                    left += items
                case ast.If(test=ast.Constant(value=value)) | ast.While(test=ast.Constant(value=value)):
                    left += inner.body if value else inner.orelse
                case ast.For(iter=ast.List(elts=[]) | ast.Tuple(elts=[])):
                    left += inner.orelse
                case _:
                    left += _children(inner)

    def _swallows(self, handler: ast.ExceptHandler) -> bool:
        """Whether the failure of an assertion ends here."""
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        catches = any(kind is None or last_name(kind) in _CATCHING for kind in kinds)
        return catches and not any(map(self.checks, handler.body))

    def _is_check(self, node: ast.AST) -> bool:
        match node:
            case ast.Assert():
                is_constant = isinstance(node.test, ast.Constant) and bool(node.test.value)
                return not is_constant and not (isinstance(node.test, ast.Tuple) and node.test.elts)
            case ast.Raise():
                return True
            case ast.Call() if last_name(node.func).startswith(_CHECKING_CALLS):
                return True
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                return any(map(self.checks, self._named.get(name, ())))
        return False


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Give what is in a node, without statements behind one that leaves."""
    for _, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield child
            if isinstance(child, ast.Return | ast.Raise | ast.Continue | ast.Break):
                break


def _refuse_form(test: _Test) -> None:
    if isinstance(test.node, ast.Lambda):
        return
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own_nodes(test.node)):
        raise TestsError(
            f"`{test.name}` is a generator, whose body would not run",
            "Allowed: test functions without `yield`",
            "Write it as a function, or with pytest.mark.parametrize",
        )
    bases = {last_name(base) for each in test.classes for base in each.bases}
    if isinstance(test.node, ast.AsyncFunctionDef) and test.is_unittest and "IsolatedAsyncioTestCase" not in bases:
        raise TestsError(
            f"`{test.name}` is a coroutine, which unittest.TestCase never awaits",
            "Allowed: coroutines in a unittest.IsolatedAsyncioTestCase, or in functions and classes of pytest",
            "Change the base class",
        )


def _own_nodes(function: _Function) -> Iterator[ast.AST]:
    """Give the nodes of a function that are in no function inside it."""
    left: list[ast.AST] = list(function.body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, _Function | ast.Lambda | ast.ClassDef):
            left += ast.iter_child_nodes(node)


def _is_main_guard(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))


def _is_skipped(node: _Function | ast.Lambda | ast.ClassDef) -> bool:
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return any(last_name(each) in {"skip", "xfail", "expectedFailure"} for each in decorators)


def _is_fixture(node: _Function | ast.Lambda) -> bool:
    return not isinstance(node, ast.Lambda) and any(last_name(each) == "fixture" for each in node.decorator_list)


def _fixture_name(node: _Function) -> str:
    for each in node.decorator_list:
        if isinstance(each, ast.Call):
            for keyword in each.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return node.name


def _defines(given: ast.ClassDef, name: str) -> bool:
    return any(isinstance(node, _Function) and node.name == name for node in given.body)


def _arguments(node: _Function, *, is_method: bool) -> list[str]:
    """Give those without a default value."""
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    names = names[: len(names) - len(node.args.defaults)]
    pairs = zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
    is_static = any(last_name(each) == "staticmethod" for each in node.decorator_list)
    return names[1 if is_method and not is_static else 0 :] + [each.arg for each, default in pairs if default is None]


def _parametrized(decorators: Sequence[ast.expr]) -> set[str]:
    """Give the arguments that `pytest.mark.parametrize` fills."""
    found: set[str] = set()
    for each in decorators:
        if isinstance(each, ast.Call) and last_name(each.func) == "parametrize" and each.args:
            match each.args[0]:
                case ast.Constant(value=str(names)):
                    found |= {name.strip() for name in names.split(",")}
                case ast.List(elts=items) | ast.Tuple(elts=items):
                    found |= {str(item.value) for item in items if isinstance(item, ast.Constant)}
    return found
