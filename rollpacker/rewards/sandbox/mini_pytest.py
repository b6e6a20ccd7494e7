"""A minimal pytest that runs the tests of a prompt, and unittest's, in the sandbox of the tests.

It has fixtures, parametrization, skip marks, setup and teardown of modules, classes and methods, and coroutines. Tests
that need more, or that it would not run, are refused when the prompt is read (`rollpacker.data.runnable_tests`, which
lists the supported names of pytest).
"""

from __future__ import annotations

import sys

from rollpacker.rewards.sandbox.rpc import TESTS
from rollpacker.rewards.sandbox.rpc_client import Remote, RpcClient, plain_of
from rollpacker.rewards.sandbox.values import SOLUTION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import CodeType
    from typing import Any


class _Skipped(Exception):
    """A test ended itself by `pytest.skip`."""


def run_tests(source: str, tests: CodeType, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
    """Run the statements of a text, then its tests; returns when none raised.

    Raises:
        BaseException: What a test raised.
        RuntimeError: There are tests, and every one was skipped.
    """
    solution = _Solution(RpcClient(source, read, write))
    module = type(sys)(TESTS)
    sys.modules |= {SOLUTION: solution, TESTS: module, "pytest": _make_pytest()}
    exec(tests, module.__dict__)  # noqa: S102 the prompt file's tests, in a sandbox of their own
    run = _Run(module)
    run.all()
    if run.num_skipped and not run.num_passed:
        raise RuntimeError("every test was skipped")


class _Solution(type(sys)):  # type: ignore[misc]
    """The module `solution`, whose names are the program's."""

    def __init__(self, client: RpcClient) -> None:
        super().__init__(SOLUTION)
        self.__dict__["_client"] = client

    def __getattr__(self, name: str) -> Any:
        return self.__dict__["_client"].import_name(name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_client"].request("set_global", name, value)


class _Run:
    """One run of the tests of a module."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._own = {name: value for name, value in vars(module).items() if not isinstance(value, Remote)}
        self._shared: dict[tuple[str, object], Any] = {}
        """Values of fixtures of a class or of the module, by name and class."""
        self._endings: dict[object, list[Iterator[Any]]] = {}
        """Generators of fixtures to finish after their class, or after the module (None)."""
        self.num_passed = self.num_skipped = 0

    def all(self) -> None:
        """Run what pytest would collect, in its order."""
        _call(self._own.get("setup_module"), self._module)
        for name, value in self._own.items():
            if isinstance(value, type):
                if _is_unittest(value):
                    self._run_unittest(value)
                elif name.startswith("Test"):
                    self._run_class(value)
            elif name.startswith("test") and callable(value) and not hasattr(value, "fixture_of_test"):
                self._run_function(value)
        self._end(None)
        _call(self._own.get("teardown_module"), self._module)

    def _run_function(self, function: Any) -> None:
        if getattr(function, "__test__", True):
            _apply_marks(function, self._own)
            self._run_cases(function, None)

    def _run_class(self, kind: type) -> None:
        if kind.__init__ is not object.__init__ or not getattr(kind, "__test__", True):  # type: ignore[misc]
            return
        _apply_marks(kind, self._own, *map(vars, kind.__mro__))
        members = {name: value for base in reversed(kind.__mro__) for name, value in vars(base).items()}
        names = [name for name, value in members.items() if name.startswith("test") and not isinstance(value, type)]
        _call(getattr(kind, "setup_class", None), kind)
        for name in names:
            if callable(getattr(kind, name)):
                self._run_cases(name, kind)
        self._end(kind)
        _call(getattr(kind, "teardown_class", None), kind)
        for name, value in members.items():
            if name.startswith("Test") and isinstance(value, type):
                self._run_class(value)

    def _run_unittest(self, kind: type) -> None:
        import io
        import unittest

        _apply_marks(kind, self._own, *map(vars, kind.__mro__))
        suite = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
        result = unittest.TextTestRunner(stream=io.StringIO()).run(suite)
        if not result.wasSuccessful():
            raise AssertionError(kind.__name__)
        skipped = {getattr(test, "test_case", test) for test, _ in result.skipped}  # a subtest as its test
        self.num_skipped += len(skipped)
        self.num_passed += max(0, result.testsRun - len(skipped))  # a class that is skipped whole has run no test

    def _run_cases(self, test: Any, kind: type | None) -> None:
        """Run a function, or a method by its name, once for each of its cases."""
        function = test if kind is None else getattr(kind, test)
        if getattr(function, "is_skipped_test", False) or getattr(kind, "is_skipped_test", False):
            self.num_skipped += 1
            return
        own, of_class = getattr(function, "cases_of_test", [{}]), getattr(kind, "cases_of_test", [{}])
        cases = [{**one, **other} for one in of_class for other in own]
        self.num_skipped += not cases
        for given in cases:
            try:
                self._run_case(test, kind, given)
            except _Skipped:
                self.num_skipped += 1
            else:
                self.num_passed += 1

    def _run_case(self, test: Any, kind: type | None, given: dict[str, Any]) -> None:
        instance = kind() if kind else None
        function = getattr(instance, test) if kind else test
        setup, teardown = ("setup_method", "teardown_method") if kind else ("setup_function", "teardown_function")
        place: Any = (lambda name: getattr(instance, name, None)) if kind else self._own.get
        fixtures = _Fixtures(self._own, instance, self._shared, self._endings)
        try:
            for name in fixtures.automatic():
                fixtures.get(name)
            _call(place(setup), function)
            for name in (*getattr(kind, "fixtures_of_test", ()), *getattr(function, "fixtures_of_test", ())):
                fixtures.get(name)
            wanted = [name for name in _parameters(function) if name in fixtures.functions and name not in given]
            _finish(function(**{name: fixtures.get(name) for name in wanted}, **given))
        finally:
            _call(place(teardown), function)
            fixtures.end()

    def _end(self, owner: object) -> None:
        for rest in reversed(self._endings.pop(owner, [])):
            next(rest, None)


class _Fixtures:
    """The fixtures that one test can have."""

    def __init__(
        self,
        own: dict[str, Any],
        instance: object,
        shared: dict[tuple[str, object], Any],
        endings: dict[object, list[Iterator[Any]]],
    ) -> None:
        self._shared, self._endings, self._kind = shared, endings, type(instance) if instance else None
        members = {name: getattr(instance, name) for name in dir(instance)} if instance else {}
        found = [(name, value) for names in (own, members) for name, value in names.items()]
        self.functions = {
            value.fixture_of_test.get("name") or name: value
            for name, value in found
            if not isinstance(getattr(value, "__func__", value), Remote | type) and hasattr(value, "fixture_of_test")
        }
        self._made: dict[str, Any] = {}
        self._rests: list[Iterator[Any]] = []

    def automatic(self) -> list[str]:
        return [name for name, function in self.functions.items() if function.fixture_of_test.get("autouse")]

    def get(self, name: str) -> Any:
        """Give a fixture's value, created once per scope."""
        function = self.functions[name]
        scope = function.fixture_of_test.get("scope", "function")
        if scope == "function":
            if name not in self._made:
                self._made[name] = self._make(function, self._rests)
            return self._made[name]
        owner = self._kind if scope == "class" else None
        if (name, owner) not in self._shared:
            self._shared[name, owner] = self._make(function, self._endings.setdefault(owner, []))
        return self._shared[name, owner]

    def end(self) -> None:
        """Finish the generators of fixtures."""
        for rest in reversed(self._rests):
            next(rest, None)

    def _make(self, function: Any, rests: list[Iterator[Any]]) -> Any:
        value = function(**{name: self.get(name) for name in _parameters(function) if name in self.functions})
        if type(value).__name__ == "generator" and not isinstance(value, Remote):
            rests.append(value)
            return next(value)
        return _finish(value)


def _parameters(function: Any) -> tuple[str, ...]:
    """Give the names of a function's parameters, without that of a bound object."""
    is_bound = hasattr(function, "__self__")
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return names[1:] if is_bound else names


def _call(function: Any, *given: object) -> None:
    """Call a setup or teardown function, which may take the object that it is for."""
    if function is not None:
        _finish(function(*given[: len(_parameters(function))]))


def _apply_marks(test: Any, *owners: Mapping[str, Any]) -> None:
    """Set the marks that a module or a class has in `pytestmark`."""
    for owner in owners:
        marks = owner.get("pytestmark", ())
        for mark in marks if isinstance(marks, list | tuple) else [marks]:
            mark(test)


def _finish(value: Any) -> Any:
    """Run a coroutine to its end."""
    if type(value).__name__ != "coroutine" or isinstance(value, Remote):
        return value
    import asyncio

    return asyncio.run(value)


def _is_unittest(kind: type) -> bool:
    return any(base.__module__.startswith("unittest") and base.__name__ == "TestCase" for base in kind.__mro__[1:])


def _make_pytest() -> Any:  # noqa: C901 one small function per name
    """The module `pytest`: what test files of public sets use of it."""
    from contextlib import contextmanager

    module = type(sys)("pytest")

    class Seen:
        value: BaseException
        type: type[BaseException]

        def match(self, pattern: str) -> bool:
            import re

            if not re.search(pattern, str(self.value)):
                raise AssertionError(f"{self.value!r} does not match {pattern!r}")
            return True

        @property
        def typename(self) -> str:
            return self.type.__name__

        def exconly(self) -> str:
            import traceback

            return "".join(traceback.format_exception_only(self.value)).rstrip()

        def __repr__(self) -> str:
            return f"<ExceptionInfo {self.value!r}>"

    @contextmanager
    def expecting(kinds: Any, match: str | None) -> Any:
        seen = Seen()
        try:
            yield seen
        except kinds as error:
            seen.value, seen.type = error, type(error)
            if match is not None:
                seen.match(match)
        else:
            raise AssertionError(f"did not raise {kinds}")

    def raises(expected_exception: Any, *call: Any, match: str | None = None, **named: object) -> Any:
        if not call:
            return expecting(expected_exception, match)
        with expecting(expected_exception, match) as seen:
            call[0](*call[1:], **named)
        return seen

    def parametrize(names: Any, cases: Any, **_options: object) -> Any:
        wanted = [name.strip() for name in names.split(",") if name.strip()] if isinstance(names, str) else list(names)

        def values_of(case: Any) -> tuple[Any, ...]:
            return case if isinstance(case, _Case) else tuple(case) if len(wanted) > 1 else (case,)

        def mark(test: Any) -> Any:
            chosen = [case for case in cases if not (isinstance(case, _Case) and hasattr(case, "is_skipped_test"))]
            given = [dict(zip(wanted, values_of(case), strict=True)) for case in chosen]
            test.cases_of_test = [{**one, **other} for one in getattr(test, "cases_of_test", [{}]) for other in given]
            return test

        return mark

    def fixture(function: Any = None, **options: object) -> Any:
        def mark(function: Any) -> Any:
            function.fixture_of_test = options
            return function

        return mark if function is None else mark(function)

    def fail(reason: str = "", **_options: object) -> None:
        raise AssertionError(reason)

    def skip(reason: str = "", **_options: object) -> None:
        raise _Skipped(reason)

    def importorskip(name: str, **_options: object) -> Any:
        import importlib

        try:
            return importlib.import_module(name)
        except ImportError as error:
            raise _Skipped(str(error)) from None

    def skipping(*given: Any, **_named: object) -> Any:
        """As `@skip`, `@skip("reason")` or in `param(..., marks=skip)`."""

        def mark(test: Any) -> Any:
            test.is_skipped_test = test.__unittest_skip__ = True
            return test

        return mark(given[0]) if given and (callable(given[0]) or isinstance(given[0], _Case)) else mark

    class Mark:
        parametrize: Any
        skip = staticmethod(skipping)

        @staticmethod
        def xfail(condition: Any = True, **_options: object) -> Any:
            """As `@xfail`, or as `skipif`; the condition may be left out."""
            return skipping(condition) if condition else lambda test: test

        @staticmethod
        def skipif(condition: object, **_options: object) -> Any:
            return skipping() if condition else lambda test: test

        @staticmethod
        def usefixtures(*names: str) -> Any:
            def mark(test: Any) -> Any:
                test.fixtures_of_test = (*getattr(test, "fixtures_of_test", ()), *names)
                return test

            return mark

        def __getattr__(self, _name: str) -> Any:
            return lambda *given, **_named: given[0] if len(given) == 1 and callable(given[0]) else lambda test: test

    mark = Mark()
    mark.parametrize = parametrize
    module.__dict__.update(raises=raises, mark=mark, fixture=fixture, fail=fail, skip=skip, importorskip=importorskip)
    module.__dict__.update(approx=_Approximately, param=_param)
    return module


class _Case(tuple):  # type: ignore[type-arg]  # noqa: SLOT001
    """The values of a `pytest.param`; a mark may be set on it."""


def _param(*values: object, marks: Any = (), **_options: object) -> _Case:
    case = _Case(values)
    for mark in marks if isinstance(marks, list | tuple) else [marks]:
        mark(case)
    return case


class _Approximately:
    """`pytest.approx`."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None, nan_ok: bool = False) -> None:  # noqa: A002 pytest's names
        self._expected = expected
        self._rel = 1e-6 if rel is None and abs is None else rel or 0.0
        self._abs = 1e-12 if abs is None else abs
        self._is_nan_right = nan_ok

    def __eq__(self, given: object) -> bool:
        return self._is_near(given, self._expected)

    __hash__ = None  # type: ignore[assignment]

    def _is_near(self, given: Any, expected: Any) -> bool:
        given = plain_of(given)
        if isinstance(given, Remote):
            return False
        if isinstance(expected, list | tuple):
            return (
                isinstance(given, list | tuple)
                and len(given) == len(expected)
                and all(map(self._is_near, given, expected))
            )
        if isinstance(expected, dict):
            return (
                isinstance(given, dict)
                and given.keys() == expected.keys()
                and all(self._is_near(given[key], expected[key]) for key in expected)
            )
        if not isinstance(given, int | float | complex) or not isinstance(expected, int | float | complex):
            return bool(given == expected)
        if given != given or expected != expected:  # noqa: PLR0124 a NaN
            return self._is_nan_right and given != given and expected != expected  # noqa: PLR0124
        is_finite = abs(expected) != float("inf")
        return bool(
            given == expected or (is_finite and abs(given - expected) <= max(self._abs, self._rel * abs(expected)))
        )
