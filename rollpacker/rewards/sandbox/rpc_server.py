"""The program's end of the connection: it executes every request of the tester, and holds nothing secret."""

from __future__ import annotations

import builtins
import sys

from rollpacker.rewards.sandbox.rpc import COMBINING, COMPUTING, END, Peer, builtin_error, error_of
from rollpacker.rewards.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


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


class _RpcServer(Peer):
    """The program's end."""

    def __init__(self, module: Any, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        super().__init__(read, write)
        self._module = module
        self._passed: dict[int, Any] = {}
        """What the tests passed, by their number: `Local`s and functions."""

    def _export_object(self, value: object) -> str:
        for number, passed in self._passed.items():
            if value is passed:
                return f'{{"{"y" if isinstance(value, Local) else "k"}":{number}}}'
        if isinstance(value, int | str):  # a member of an enumeration
            return f'{{"h":[{encode(value)},{self._number_of(value)}]}}'
        tag = "w" if type(value).__name__ == "coroutine" else "o"
        return f'{{"{tag}":{self._number_of(value)}}}'

    def _handle(self, verb: str, parts: list[Any]) -> None:
        self._respond(lambda: self._execute(verb, [decode(part, self._restore) for part in parts]))

    def _execute(self, verb: str, given: list[Any]) -> tuple[object, object]:  # noqa: PLR0911 the verbs of `RpcClient`
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
            case "isinstance", [instance, kind]:
                return isinstance(instance, kind), None
            case "issubclass", [kind, base]:
                return issubclass(kind, base), None
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
        if "o" in tree:
            return self._exported[tree["o"]]
        ((tag, number),) = tree.items()

        def callback(*arguments: object, **named: object) -> object:
            return self.request("call", number, arguments, named)

        return self._passed.setdefault(number, Local(self, number) if tag == "y" else callback)

    def request(self, verb: str, number: int, *given: object) -> Any:
        """Send a request for an object of the tests."""
        self._write(f'["{verb}",{number}{"".join("," + self._encode(each) for each in given)}]'.encode())
        answer, *parts = self._receive()
        if answer == "raise":
            details: list[Any] = [decode(part, self._restore) for part in parts]
            raise error_of(builtin_error(details[0]), details[1])
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


def _described(value: object) -> list[object]:
    if isinstance(value, type(sys)):
        return ["module", None]
    if isinstance(value, type) and issubclass(value, Exception):
        return ["error", [kind.__name__ for kind in value.__mro__]]
    return ["object", value]


def _operation(name: str) -> Any:
    """What Python does for an operator or a builtin function, with its fallbacks."""
    import copy
    import operator

    bare = name.strip("_")
    if name in {"__copy__", "__deepcopy__"}:
        return getattr(copy, bare)
    if name.startswith("__r") and f"__{bare[1:]}__" in (*COMBINING, *COMPUTING):
        return lambda target, other: getattr(operator, f"__{bare[1:]}__")(other, target)
    if name in vars(operator) and name not in {"__doc__", "__name__"}:
        return vars(operator)[name]
    return getattr(builtins, bare, None) or (lambda target, *given: getattr(type(target), name)(target, *given))
