"""Remote calls between two sandboxes: tests run in the tester, and call the program in the other.

A name that the tests import from `solution` is requested from the program: it is plain data, an error class of the same
name and bases, or a `Remote`, a proxy of an object there, whose class has the name of the object's. A call sends its
arguments as plain data and returns plain data, or a `Remote` of any other object. A number, text or tuple is plain data
whatever its class; a member of an enumeration that is a number or a text is that, and has a `Remote` for its other
attributes. The items of a `Remote` whose class inherits from a list, dictionary or set are asked for when it is
compared. Classes of `LIBRARIES` are the same in both processes, and a `Remote` is an instance of the one that its
object's class inherits from. Changes of the arguments are applied in the tester too, and a result that is one of them
is the same object here. Functions that the tests pass can be called back, iterators that they pass are asked for one
item at a time, and public attributes of objects that they pass can be read. A name that the tests set in `solution` is
set in the program.

Errors cross by the names of their classes. One of Python's own is that on either side, and one that either side defines
is of the same class there, however often it crosses. What a test runner gives a meaning, such as `unittest.SkipTest`,
the program cannot raise.

Invariant: no code of the program runs in the tester, and no name of the program is there but those that the tests
import. No value of the program decides a comparison with plain data, unless the tests use it as what plain data is not:
a `Remote` equals nothing but another `Remote` that its own program says it equals, until the tests read an attribute of
it that no plain data has. If its class inherits from a container, a plain copy is compared and searched, in the tester.
So an object whose `__eq__`, `__lt__`, `__sub__` or `__contains__` always succeeds passes for no number, text or
container. What a test compares only with objects of the program itself, the program decides, as it would under pytest.

Messages are JSON: a request is `[verb, ...]`, a response `["value", value, arguments]` or `["raise", error]`, where
`arguments` are those by position, those by name, and at which position the result stands, if it does. Each side handles
requests while it waits for a response. The tester handles only calls of functions that it passed, items of iterators
that it passed, and public attributes of objects that it passed.
"""

from __future__ import annotations

import sys

from rollpacker.rewards.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

END = b'["end"]'
"""Sent by the supervisor when the tests are over."""

TESTS = "test_solution"
"""The module of the tests, as they see it."""

TESTS_FILE = "test_solution.py"
"""The name of the tests' file, in tracebacks."""

UNARY = (
    *("__len__", "__iter__", "__next__", "__reversed__", "__getitem__", "__setitem__", "__delitem__", "__bool__"),
    *("__str__", "__repr__", "__int__", "__float__", "__index__", "__abs__", "__neg__", "__round__", "__call__"),
    *("__pos__", "__invert__", "__format__", "__bytes__", "__hash__", "__copy__", "__dir__"),
    *("__enter__", "__aenter__", "__aiter__"),
)
"""Handled by the program for its objects, which does not see what the test compares the result with."""

COMPARING = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__contains__")
"""Handled by it only where both are its own objects, or the tests use the first as no plain data."""

COMBINING = ("__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__imul__")
"""The same; with plain data the result may be an object."""

COMPUTING = (
    *("__sub__", "__truediv__", "__floordiv__", "__mod__", "__pow__", "__and__", "__or__", "__xor__", "__matmul__"),
    *("__lshift__", "__rshift__", "__rsub__", "__rtruediv__", "__isub__", "__iand__", "__ior__", "__ixor__"),
    *("__rand__", "__ror__", "__rxor__"),
)
"""The same; the object never becomes plain data by itself: of the answer that it should be, it may have been told the
difference. It may be plain data where the tester computes the same."""

LIBRARIES = ("abc", "builtins", "collections", "collections.abc", "enum")
"""Modules whose classes tests compare with those of a program."""

GENERATOR = "types.GeneratorType"
"""The path of a class that no name of its own module has."""

_EXITS = (SystemExit, KeyboardInterrupt)
"""Errors that tests may expect though they are no `Exception`."""


class Peer:
    """One end of the connection."""

    own_module: str
    """Of the classes of errors that this side defines."""
    other_module: str
    """Of those that the other side defines."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        import json

        self._loads = json.loads
        self._read = read
        self._write = write
        self._exported: list[Any] = []
        self._numbers: dict[int, int] = {}
        """Of what is exported, by `id`; kept as long as the connection."""
        self._records: dict[tuple[str, ...], Callable[..., object]] = {}
        """Classes of named tuples, by name and fields: they cross as data, and are of the same class on either side."""
        self._error_types: dict[tuple[str, str], type[BaseException]] = {}
        """Classes of errors that crossed, own and other ones, by module and name."""

    def _number_of(self, value: object) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._exported)
            self._exported.append(value)
        return self._numbers[id(value)]

    def _encode(self, value: object) -> str:
        return encode(value, self._export)

    def _export(self, value: object) -> str:
        """Write what is no plain data."""
        if isinstance(value, tuple):
            record, fields = type(value), list(value._fields)  # type: ignore[attr-defined]
            self._records[record.__name__, *fields] = record
            return f'{{"u":{self._encode([record.__name__, fields, list(value)])}}}'
        if isinstance(value, type) and (path := library_path(value)):
            return f'{{"g":"{path}"}}'
        if isinstance(value, type) and issubclass(value, Exception):
            return f'{{"J":{encode(self._names_of(value))}}}'
        return self._export_object(value)

    def _export_object(self, value: object) -> str:
        raise NotImplementedError

    def _restore(self, tree: dict[str, Any]) -> object:
        """Make what the other side exported."""
        match tree:
            case {"g": str(path)} if kind := library_class(path):
                return kind
            case {"J": names}:
                return self._error_type(names)
            case {"Q": body}:
                return self._error(body)
            case {"u": _}:
                pass
            case _:
                return self._restore_object(tree)
        from collections import namedtuple

        record_body: Any = decode(tree["u"], self._restore)
        name, fields, values = record_body
        record = self._records.get((name, *fields)) or namedtuple(name, fields)  # noqa: PYI024 fields of the other side
        self._records[name, *fields] = record
        return record(*values)

    def _restore_object(self, tree: dict[str, Any]) -> object:
        raise NotImplementedError

    def _receive(self) -> list[Any]:
        """Wait for a response, and handle requests meanwhile."""
        while True:
            verb, *parts = self._loads(self._read())
            if verb in {"value", "raise"}:
                return [verb, *parts]
            self._handle(verb, parts)

    def _handle(self, verb: str, parts: list[Any]) -> None:
        raise NotImplementedError

    def _respond(self, work: Callable[[], tuple[object, object]]) -> None:
        try:
            value, arguments = work()
            answer = f'["value",{self._encode(value)},{self._encode(arguments)}]'
        except BaseException as error:  # noqa: BLE001 the other side raises it
            try:
                answer = f'["raise",{self._encode_error(error)}]'
            except BaseException as second:  # noqa: BLE001 of an error that cannot be encoded; this one can
                answer = f'["raise",{self._encode_error(RuntimeError(type(second).__name__))}]'
        self._write(answer.encode())

    def _raised(self, tree: object) -> BaseException:
        """Make what the other side raised."""
        error = decode(tree, self._restore)
        return error if isinstance(error, BaseException) else RuntimeError("no error")

    def _encode_error(self, error: BaseException) -> str:
        """Write an error as data; the other side makes one of the same class."""
        if isinstance(error, BaseExceptionGroup):
            arguments = f"[{self._encode(error.message)},[{','.join(map(self._encode_error, error.exceptions))}]]"
        else:
            arguments = self._encode(list(error.args))
        attributes = {k: each for k, each in vars(error).items() if k == "__notes__" or not k.startswith("_")}
        names, text = encode(self._names_of(type(error))), encode(str(error))
        cause = "null" if error.__cause__ is None else self._encode_error(error.__cause__)
        return f'{{"Q":[{names},{arguments},{text},{self._encode(attributes)},{cause}]}}'

    def _error(self, body: object) -> BaseException:
        error_body: Any = decode(body, self._restore)
        names, arguments, text, attributes, cause = error_body
        error = _created(self._error_type(names), arguments)
        error.__cause__ = cause
        error.__dict__.update(attributes)
        if type(error).__str__ is _text_of:
            error.__dict__["_text"] = text
        return error

    def _names_of(self, kind: type[BaseException]) -> list[list[str]]:
        """Give module and name of a class of errors and of its bases, nearest first; own ones are known from then."""
        for each in kind.__mro__:
            if each.__module__ == self.own_module:
                self._error_types[self.own_module, each.__name__] = each
        return [[each.__module__, each.__name__] for each in kind.__mro__]

    def _error_type(self, names: list[list[str]]) -> type[BaseException]:
        """Give an error of Python's own, one that crossed before, or make one with the bases that it has there."""
        if not names:
            return RuntimeError
        module, name = (str(each) for each in names[0])
        if kind := _library_error(module, name):
            return kind
        if (module, name) not in self._error_types:
            own = {"__str__": _text_of, "__module__": self.other_module}
            self._error_types[module, name] = type(name, (self._error_type(names[1:]),), own)
        return self._error_types[module, name]


def library_path(kind: type) -> str:
    """Give module and name of a class of `LIBRARIES`, or nothing."""
    module, name = str(kind.__module__), kind.__name__
    if module in LIBRARIES and getattr(sys.modules.get(module), name, None) is kind:
        return f"{module}.{name}"
    return GENERATOR if (module, name) == ("builtins", "generator") else ""


def library_class(path: str) -> type | None:
    """Give the class of a path, if `library_path` gives it."""
    module, _, name = path.rpartition(".")
    kind = vars(__import__(module, fromlist=[name])).get(name) if module in LIBRARIES or path == GENERATOR else None
    return kind if isinstance(kind, type) else None


def operation(name: str) -> Callable[[Any, Any], Any]:
    """Give what Python does for an operator, with its fallbacks; a reflected one takes its right operand first."""
    import operator

    if name.startswith("__r") and name != "__rshift__":
        return lambda right, left: vars(operator)[f"__{name[3:]}"](left, right)
    function: Callable[[Any, Any], Any] = vars(operator)[name]
    return function


def _library_error(module_name: str, name: str) -> type[BaseException] | None:
    """Give an error of the standard library that has no meaning to a test runner, where its module is imported here."""
    if module_name.partition(".")[0] not in sys.stdlib_module_names or module_name not in sys.modules:
        return None
    kind = vars(sys.modules[module_name]).get(name)
    if not isinstance(kind, type) or not issubclass(kind, (Exception, *_EXITS)):
        return None
    return None if any(each.__module__.startswith("unittest") for each in kind.__mro__) else kind


def _created(kind: type[BaseException], arguments: list[Any]) -> BaseException:
    try:
        return kind(*arguments)
    except TypeError:  # it makes its arguments of others, as JSONDecodeError does
        return kind.__new__(kind, *arguments)


def _text_of(error: BaseException) -> str:
    return str(error.__dict__.get("_text", ", ".join(map(str, error.args))))
