"""Assertions in one sandbox about a program in another: they call, and plain data comes back.

The tester's names of the response are `Remote`s. A call sends its arguments as plain data and returns plain data, or
a `Remote` of an object that is none; what the call changed in its arguments is changed in the tester's too. A
function that the tester passes is called back.

Invariant: no code of the program runs in the tester, and no value of the program decides a comparison with plain
data. A `Remote` equals nothing but another `Remote` that its own program says it equals, so an object whose `__eq__`,
`__lt__`, `__sub__` or `__contains__` is always content passes for nothing. What a test compares only with objects of
the program itself, the program decides, as it would under pytest.

Messages, as JSON: `[verb, ...]` asks, `["value", value, arguments]` and `["raise", names, text]` answer. Each side
answers what it is asked while it waits for an answer. The tester answers nothing but calls of the functions that it
passed.
"""

from __future__ import annotations

import sys

from rollpacker.rewards.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType
    from typing import Any

END = b'["end"]'
"""What the keeper tells a program that nobody will ask any more."""

_UNARY = (
    *("__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__", "__bool__"),
    *("__str__", "__repr__", "__int__", "__float__", "__index__", "__abs__", "__neg__", "__round__", "__call__"),
    *("__enter__", "__exit__"),
)
"""What the program may answer for its objects: it is not told what the test holds the answer against."""

_BINARY = (
    *("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__add__", "__sub__", "__mul__", "__truediv__"),
    *("__floordiv__", "__mod__", "__pow__", "__and__", "__or__", "__xor__", "__matmul__"),
)
"""What it may answer only where both are its own objects."""


class Remote:
    """An object of the program, in the tester."""

    def __init__(self, tester: _Tester, number: int) -> None:
        self.__dict__.update(_tester=tester, _number=number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.__dict__["_tester"].ask("get", self, name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_tester"].ask("set", self, name, value)

    def __instancecheck__(self, instance: object) -> bool:
        return isinstance(instance, Remote) and self.__dict__["_tester"].ask("isinstance", instance, self) is True

    def __hash__(self) -> int:
        return self.__dict__["_number"]  # type: ignore[no-any-return]


def _unary(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: object, **named: object) -> Any:
        return self.__dict__["_tester"].call(self, name, arguments, named)

    return method


def _binary(name: str) -> Callable[[Remote, object], Any]:
    def method(self: Remote, other: object) -> Any:
        if not isinstance(other, Remote):
            return NotImplemented
        return self.__dict__["_tester"].call(self, name, (other,), {})

    return method


for _name in _UNARY:
    setattr(Remote, _name, _unary(_name))
for _name in _BINARY:
    setattr(Remote, _name, _binary(_name))


class _Peer:
    """One end of the talk."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        import json

        self._loads = json.loads
        self._read = read
        self._write = write
        self._exported: list[Any] = []

    def _export(self, value: object) -> str:
        known = [number for number, each in enumerate(self._exported) if each is value]
        if not known:
            known.append(len(self._exported))
            self._exported.append(value)
        return f'{{"o":{known[0]}}}'

    def _encode(self, value: object) -> str:
        return encode(value, self._export)

    def _wait(self) -> list[Any]:
        """Wait for an answer, and answer meanwhile."""
        while True:
            verb, *parts = self._loads(self._read())
            if verb in {"value", "raise"}:
                return [verb, *parts]
            self._answer(verb, parts)

    def _answer(self, verb: str, parts: list[Any]) -> None:
        raise NotImplementedError

    def _reply(self, work: Callable[[], tuple[object, object]]) -> None:
        try:
            value, arguments = work()
            answer = f'["value",{self._encode(value)},{self._encode(arguments)}]'
        except BaseException as error:  # noqa: BLE001 the other side raises it
            names = [kind.__name__ for kind in type(error).__mro__]
            texts = [each for each in error.args if isinstance(each, str | int)]
            answer = f'["raise",{encode(names)},{encode(texts)}]'
        self._write(answer.encode())


class _Program(_Peer):
    """The end where the program is; it has no secrets from the other."""

    def _answer(self, verb: str, parts: list[Any]) -> None:
        self._reply(lambda: self._work(verb, [decode(part, self._restore) for part in parts]))

    def _work(self, verb: str, given: list[Any]) -> tuple[object, object]:  # noqa: PLR0911 the verbs of `_Tester`
        match verb, given:
            case "names", _:
                return [_described(name, value) for name, value in _public(self._module)], None
            case "global", [name]:
                return getattr(self._module, name), None
            case "get", [target, name]:
                return getattr(target, name), None
            case "set", [target, name, value]:
                setattr(target, name, value)
                return None, None
            case "isinstance", [instance, kind]:
                return isinstance(instance, kind), None
            case "call", [target, "__call__", arguments, named]:
                return target(*arguments, **named), arguments
            case "call", [target, name, arguments, named]:
                return _operation(name)(target, *arguments, **named), arguments
        raise TypeError(verb)

    def _restore(self, tree: dict[str, Any]) -> object:
        if "o" in tree:
            return self._exported[tree["o"]]
        number = tree["k"]

        def callback(*arguments: object, **named: object) -> object:
            self._write(f'["call",{number},{self._encode(arguments)},{self._encode(named)}]'.encode())
            verb, *parts = self._wait()
            if verb == "raise":
                raise _error_of(parts[0], parts[1])
            return decode(parts[0], self._restore)

        return callback

    def serve(self, module: Any) -> None:
        self._module = module
        while (message := self._read()) != END:
            verb, *parts = self._loads(message)
            self._answer(verb, parts)


class _Tester(_Peer):
    """The end where the assertions are."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        super().__init__(read, write)
        self._error_types: dict[str, type[Exception]] = {}

    def names(self) -> dict[str, Any]:
        """What the response defines."""
        found: dict[str, Any] = {}
        for name, kind, bases in self.ask("names"):
            if kind == "module":
                if bases in sys.stdlib_module_names:
                    found[name] = __import__(bases)
            elif kind == "error":
                found[name] = self._error_types[bases[0]] = type(bases[0], (_builtin_error(bases),), {})
            else:
                found[name] = self.ask("global", name)
        return found

    def ask(self, verb: str, *given: object) -> Any:
        self._write(f'["{verb}"{"".join("," + self._encode(each) for each in given)}]'.encode())
        return self._result()[0]

    def call(self, target: Remote, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> Any:
        sent = [target, name, list(arguments), named]
        self._write(f'["call",{",".join(self._encode(each) for each in sent)}]'.encode())
        value, changed = self._result()
        if isinstance(changed, list):
            for ours, theirs in zip(arguments, changed, strict=False):
                _take_over(ours, theirs)
        return value

    def _result(self) -> tuple[Any, Any]:
        verb, *parts = self._wait()
        if verb == "raise":
            names, texts = (decode(part) for part in parts)
            known = [self._error_types[name] for name in names if name in self._error_types]  # type: ignore[attr-defined]
            raise known[0](*texts) if known else _error_of(names, texts)  # type: ignore[misc, arg-type]
        value, changed = (decode(part, self._restore) for part in parts)
        return value, changed

    def _export(self, value: object) -> str:
        if isinstance(value, Remote):
            return f'{{"o":{value.__dict__["_number"]}}}'
        if not callable(value):
            raise TypeError(f"a test passes an object of type {type(value).__name__} to the program")
        self._exported.append(value)
        return f'{{"k":{len(self._exported) - 1}}}'

    def _restore(self, tree: dict[str, Any]) -> object:
        return Remote(self, int(tree["o"]))

    def _answer(self, verb: str, parts: list[Any]) -> None:
        if verb != "call":
            raise TypeError(f"the program asks to {verb}")
        number, arguments, named = parts
        given, by_name = decode(arguments, self._restore), decode(named, self._restore)
        self._reply(lambda: (self._exported[number](*given, **by_name), None))  # type: ignore[misc, arg-type]


def serve(module: Any, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
    """Answer for a program until the case is over."""
    _Program(read, write).serve(module)


def run_tests(tests: CodeType, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
    """Run assertions, then functions `test...`; returns when none raised."""
    names = _Tester(read, write).names()
    solution = type(sys)("solution")
    solution.__dict__.update(names)
    sys.modules["solution"] = solution
    sys.modules["pytest"] = _make_pytest()
    module = type(sys)("test_solution")
    sys.modules["test_solution"] = module
    module.__dict__.update(names)
    exec(tests, module.__dict__)  # noqa: S102 the prompt file's tests, in a sandbox of their own
    own = {name: value for name, value in vars(module).items() if not isinstance(value, Remote)}
    fixtures = {name: value for name, value in own.items() if hasattr(value, "fixture_of_test")}
    for name, value in own.items():
        if isinstance(value, type) and _is_unittest(value):
            _run_unittest(value)
        elif isinstance(value, type) and name.startswith("Test"):
            for method in [each for each in vars(value) if each.startswith("test")]:
                instance = value()
                getattr(instance, "setup_method", lambda: None)()
                _run_test(getattr(instance, method), fixtures)
        elif callable(value) and name.startswith("test") and not isinstance(value, type):
            _run_test(value, fixtures)


def _run_test(test: Any, fixtures: dict[str, Any]) -> None:
    code = getattr(test, "__code__", None)
    wanted = code.co_varnames[: code.co_argcount] if code else ()
    for given in getattr(test, "cases_of_test", [{}]):
        made = {name: _fixture(fixtures[name], fixtures) for name in wanted if name in fixtures and name not in given}
        test(**made, **given)


def _fixture(function: Any, fixtures: dict[str, Any]) -> Any:
    code = function.__code__
    made = function(**{name: _fixture(fixtures[name], fixtures) for name in code.co_varnames[: code.co_argcount]})
    return next(made) if type(made).__name__ == "generator" else made


def _is_unittest(kind: type) -> bool:
    return any(base.__module__.startswith("unittest") and base.__name__ == "TestCase" for base in kind.__mro__[1:])


def _run_unittest(kind: type) -> None:
    import io
    import unittest

    suite = unittest.defaultTestLoader.loadTestsFromTestCase(kind)
    if not unittest.TextTestRunner(stream=io.StringIO()).run(suite).wasSuccessful():
        raise AssertionError(kind.__name__)


def _make_pytest() -> Any:  # noqa: C901 one small function per name
    """The little of pytest that test files of public sets use."""
    from contextlib import contextmanager

    module = type(sys)("pytest")

    class Seen:
        value: BaseException
        type: type[BaseException]

    @contextmanager
    def raises(kinds: Any, match: str | None = None) -> Any:
        seen = Seen()
        try:
            yield seen
        except kinds as error:
            seen.value, seen.type = error, type(error)
            if match is not None:
                import re

                if not re.search(match, str(error)):
                    raise AssertionError(f"{error!r} does not match {match!r}") from None
        else:
            raise AssertionError(f"did not raise {kinds}")

    def parametrize(names: Any, cases: Any, **_options: object) -> Any:
        wanted = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)

        def mark(test: Any) -> Any:
            given = [dict(zip(wanted, case if len(wanted) > 1 else (case,), strict=True)) for case in cases]
            test.cases_of_test = [{**one, **other} for one in getattr(test, "cases_of_test", [{}]) for other in given]
            return test

        return mark

    def fixture(function: Any = None, **_options: object) -> Any:
        if function is None:
            return fixture
        function.fixture_of_test = True
        return function

    def fail(reason: str = "") -> None:
        raise AssertionError(reason)

    class Mark:
        def __getattr__(self, _name: str) -> Any:
            return lambda *given, **_named: given[0] if len(given) == 1 and callable(given[0]) else lambda test: test

    mark = Mark()
    mark.__dict__["parametrize"] = parametrize
    module.__dict__.update(raises=raises, mark=mark, fixture=fixture, fail=fail, approx=_Approximately, param=_tuple)
    return module


def _tuple(*values: object, **_options: object) -> tuple[object, ...]:
    return values


class _Approximately:
    """`pytest.approx`."""

    def __init__(self, expected: Any, rel: float | None = None, abs: float | None = None) -> None:  # noqa: A002 pytest's name
        self._expected = expected
        self._rel = 1e-6 if rel is None and abs is None else rel or 0.0
        self._abs = 1e-12 if abs is None else abs

    def __eq__(self, given: object) -> bool:
        return self._is_near(given, self._expected)

    __hash__ = None  # type: ignore[assignment]

    def _is_near(self, given: Any, expected: Any) -> bool:
        if isinstance(given, Remote):
            return False
        if isinstance(expected, list | tuple):
            return len(given) == len(expected) and all(map(self._is_near, given, expected))
        if isinstance(expected, dict):
            return given.keys() == expected.keys() and all(self._is_near(given[key], expected[key]) for key in expected)
        if not isinstance(given, int | float | complex) or not isinstance(expected, int | float | complex):
            return bool(given == expected)
        return bool(given == expected or abs(given - expected) <= max(self._abs, self._rel * abs(expected)))


def _public(module: Any) -> list[tuple[str, object]]:
    return [(name, value) for name, value in list(vars(module).items()) if not name.startswith("__")]


def _described(name: str, value: object) -> tuple[object, ...]:
    if isinstance(value, type(sys)):
        return name, "module", value.__name__
    if isinstance(value, type) and issubclass(value, Exception):
        return name, "error", [kind.__name__ for kind in value.__mro__]
    return name, "object", None


def _operation(name: str) -> Any:
    """What Python does for an operator or a builtin function, with its fallbacks."""
    import builtins
    import operator

    bare = name.strip("_")
    if hasattr(operator, name):
        return getattr(operator, name)
    return getattr(builtins, bare, None) or (lambda target, *given: getattr(type(target), name)(target, *given))


def _builtin_error(names: list[str]) -> type[Exception]:
    import builtins

    for name in names:
        kind = getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            return kind
    return RuntimeError


def _error_of(names: list[str], texts: list[Any]) -> Exception:
    kind = _builtin_error(names)
    try:
        return kind(*texts)
    except TypeError:  # one that wants other arguments, such as UnicodeDecodeError
        return RuntimeError(*texts)


def _take_over(ours: Any, theirs: Any) -> None:
    """Change a container as the call changed its copy."""
    if type(ours) not in {list, dict, set, bytearray} or type(ours) is not type(theirs) or ours == theirs:
        return
    match ours, theirs:
        case (list(), list()) | (bytearray(), bytearray()):
            ours[:] = theirs
        case (dict(), dict()) | (set(), set()):
            ours.clear()
            ours.update(theirs)
