"""The program's end of the connection: it executes every request of the tester, and holds nothing secret."""

from __future__ import annotations

import builtins
import sys

from rollpacker.rewards.sandbox.rpc import COMBINING, COMPARING, COMPUTING, END, TESTS, Peer, library_path, operation
from rollpacker.rewards.sandbox.values import CHANGEABLE, SOLUTION, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_BUILTINS = (
    *("aiter", "bool", "bytes", "dir", "float", "format", "hash", "int", "iter", "len", "next", "repr", "reversed"),
    *("round", "str"),
)
"""Functions that call the special method of their name; `exit` is none."""


def serve(module: Any, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
    """Serve a program until the case is over."""
    _RpcServer(module, read, write).serve()


class Local:
    """An object of the tests, in the program: one of a class that they define."""

    def __init__(self, server: _RpcServer, number: int) -> None:
        self.__dict__.update(_server=server, _number=number)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return self.__dict__["_server"].request("get", self.__dict__["_number"], name)

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_server"].request("set", self.__dict__["_number"], name, value)

    def __call__(self, *arguments: object, **named: object) -> Any:
        return self.__dict__["_server"].request("call", self.__dict__["_number"], arguments, named)


class LocalIterator:
    """An iterator of the tests, in the program."""

    def __init__(self, server: _RpcServer, number: int) -> None:
        self._server, self._number = server, number

    def __iter__(self) -> LocalIterator:
        return self

    def __next__(self) -> Any:
        return self._server.request("next", self._number)


class _RpcServer(Peer):
    """The program's end."""

    own_module, other_module = SOLUTION, TESTS

    def __init__(self, module: Any, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        super().__init__(read, write)
        self._module = module
        self._passed: dict[int, Any] = {}
        """What the tests passed, by their number: `Local`s, iterators, errors and functions."""

    def _export_object(self, value: object) -> str:
        for number, passed in self._passed.items():
            if value is passed:
                return f'{{"{"y" if isinstance(value, Local) else "k"}":{number}}}'
        kind, number = type(value), self._number_of(value)
        if isinstance(value, int | str):  # a member of an enumeration
            return f'{{"h":[{encode(value)},{number}]}}'
        if kind.__name__ == "coroutine":
            return f'{{"w":{number}}}'
        return f'{{"o":{encode([number, kind.__name__, _library_base(kind), _data_base(kind).__name__])}}}'

    def _handle(self, verb: str, parts: list[Any]) -> None:
        self._respond(lambda: self._execute(verb, [decode(part, self._restore) for part in parts]))

    def _execute(self, verb: str, given: list[Any]) -> tuple[object, object]:  # noqa: C901, PLR0911 the verbs
        match verb, given:
            case "global", [name]:
                return _described(find_name(self._module, name)), None
            case "set_global", [name, value]:
                setattr(self._module, name, value)
                return None, None
            case "get", [target, name]:
                return getattr(target, name), None
            case "set", [target, name, value]:
                setattr(target, name, value)
                return None, None
            case "delete", [target, name]:
                delattr(target, name)
                return None, None
            case "isinstance", [instance, kind]:
                return isinstance(instance, kind), None
            case "issubclass", [kind, base]:
                return issubclass(kind, base), None
            case "copy", [target]:
                return _copied(target), None
            case "await", [coroutine]:
                return self._loop().run_until_complete(coroutine), None
            case "anext", [iterator]:
                return self._loop().run_until_complete(anext(iterator)), None
            case "call", [target, name, arguments, named]:
                value = _operation(name)(target, *arguments, **named)
                same = [index for index, each in enumerate(arguments) if each is value]
                return value, [arguments, named, same[:1]]
        raise TypeError(verb)

    def _loop(self) -> Any:
        """One for all coroutines: they may wait for each other's locks and queues."""
        import asyncio

        if not hasattr(self, "_coroutines"):
            self._coroutines = asyncio.new_event_loop()
        return self._coroutines

    def _restore_object(self, tree: dict[str, Any]) -> object:
        match tree:
            case {"o": number}:
                return self._exported[number]
            case {"P": [number, error]}:
                return self._passed.setdefault(number, decode(error, self._restore))
            case {"y": number}:
                return self._passed.setdefault(number, Local(self, number))
            case {"N": number}:
                return self._passed.setdefault(number, LocalIterator(self, number))
            case {"k": [number, name, doc]}:
                return self._passed.setdefault(number, self._callback(number, name, doc))
        raise ValueError(f"no value: {list(tree)}")

    def _callback(self, number: int, name: object, doc: object) -> Callable[..., object]:
        """Make a function of the tests, with its name and text of documentation."""

        def callback(*arguments: object, **named: object) -> object:
            return self.request("call", number, arguments, named)

        if isinstance(name, str):
            callback.__name__ = callback.__qualname__ = name
        callback.__doc__ = doc if isinstance(doc, str) else None
        callback.__module__ = TESTS
        return callback

    def request(self, verb: str, number: int, *given: object) -> Any:
        """Send a request for an object of the tests."""
        self._write(f'["{verb}",{number}{"".join("," + self._encode(each) for each in given)}]'.encode())
        answer, *parts = self._receive()
        if answer == "raise":
            raise self._raised(*parts)
        return decode(parts[0], self._restore)

    def serve(self) -> None:
        while (message := self._read()) != END:
            verb, *parts = self._loads(message)
            self._handle(verb, parts)


def find_name(module: Any, name: str) -> Any:
    """Give what a program defines under a name, or a method of its class `Solution`, as the public problems have it."""
    if hasattr(module, name) or not hasattr(module, "Solution"):
        return getattr(module, name)
    return getattr(module.Solution(), name)


def _data_base(kind: type) -> type:
    """Give the plain data that a class inherits from, or object; what `__class__` says does not count."""
    return next((base for base in kind.__mro__ if base in CHANGEABLE), object)


def _library_base(kind: type) -> str:
    """Give the path of the nearest class of a library that a class of objects inherits from, or nothing."""
    if issubclass(kind, type):
        return ""
    return next((path for base in kind.__mro__[:-1] if (path := library_path(base))), "")


def _copied(value: Any) -> object:
    """Give the plain data that an object of a subclass is."""
    data: Any = _data_base(type(value))
    return data(dict.items(value) if data is dict else data.__iter__(value))


def _described(value: object) -> list[object]:
    if isinstance(value, type(sys)):
        return ["module", None]
    return ["object", value]


def _operation(name: str) -> Any:
    """What Python does for an operator or a builtin function, with its fallbacks."""
    import copy
    import operator

    bare = name.strip("_")
    if name in {"__copy__", "__deepcopy__"}:
        return getattr(copy, bare)
    if name in (*COMPARING, *COMBINING, *COMPUTING):
        return operation(name)
    if name in vars(operator) and name not in {"__doc__", "__name__"}:
        return vars(operator)[name]
    if bare in _BUILTINS:
        return getattr(builtins, bare)
    if name in {"__exit__", "__aexit__"}:
        return lambda target, error: getattr(type(target), name)(target, *_details(error))
    return lambda target, *given: getattr(type(target), name)(target, *given)


def _details(error: BaseException | None) -> tuple[object, object, object]:
    """Give what Python passes at the end of a `with`."""
    return (None, None, None) if error is None else (type(error), error, error.__traceback__)
