"""The tests' end of the connection: `Remote` objects, and what the program may request."""

from __future__ import annotations

import sys

from rollpacker.rewards.sandbox.rpc import (
    COMBINING,
    COMPARING,
    COMPUTING,
    SOLUTION,
    TESTS,
    UNARY,
    Peer,
    builtin_error,
    error_of,
)
from rollpacker.rewards.sandbox.values import decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_DATA_ATTRIBUTES = frozenset(
    name
    for kind in (int, float, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range)
    for name in dir(kind)
) | {"appendleft", "extendleft", "popleft", "rotate", "maxlen", "most_common", "move_to_end"}
"""What plain data has; the last are of `collections`."""

_LEGIBLE = ("__name__", "__qualname__", "__doc__", "__wrapped__")
"""Special attributes that describe a function or class."""

_LOOP_ENDS = (StopIteration, StopAsyncIteration)
"""They end a loop silently where a function raises them; a function's is a `RuntimeError`, as in a generator."""


class Remote:
    """An object of the program, in the tester."""

    def __init__(self, client: RpcClient, number: int) -> None:
        self.__dict__.update(_client=client, _number=number, _is_plain=True, _is_told=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _LEGIBLE:
            raise AttributeError(name)
        if name not in _DATA_ATTRIBUTES:
            self.__dict__["_is_plain"] = False
        return self.__dict__["_client"].request("get", self, name)

    __doc__ = property(lambda self: self.__getattr__("__doc__"))

    def __setattr__(self, name: str, value: object) -> None:
        self.__dict__["_client"].request("set", self, name, value)

    def __instancecheck__(self, instance: object) -> bool:
        is_theirs = isinstance(instance, Remote | _Member) or hasattr(type(instance), "_fields")
        return is_theirs and self.__dict__["_client"].request("isinstance", instance, self) is True

    def __subclasscheck__(self, kind: object) -> bool:
        return isinstance(kind, Remote) and self.__dict__["_client"].request("issubclass", kind, self) is True

    async def __anext__(self) -> Any:
        return self.__dict__["_client"].request("anext", self)

    def __deepcopy__(self, _copied: object) -> Any:
        return self.__dict__["_client"].call(self, "__deepcopy__", (), {})


def _unary(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: object, **named: object) -> Any:
        if self.__dict__["_is_told"]:
            raise TypeError(f"{name} of what the response computed from a value of the tests")
        return self.__dict__["_client"].call(self, name, arguments, named)

    return method


def _binary(name: str) -> Callable[[Remote, object], Any]:
    def method(self: Remote, other: object) -> Any:
        call = self.__dict__["_client"].call
        if isinstance(other, Remote) or not self.__dict__["_is_plain"]:
            return call(self, name, (other,), {})
        if name == "__contains__":
            return any(other is each or other == each for each in self)  # type: ignore[attr-defined]
        if name in COMPARING:
            return NotImplemented
        value = call(self, name, (other,), {})
        if not isinstance(value, Remote):
            return NotImplemented
        if name in COMPUTING or self.__dict__["_is_told"]:
            value.__dict__["_is_told"] = True
        return value

    return method


for _name in UNARY:
    setattr(Remote, _name, _unary(_name))
for _name in (*COMPARING, *COMBINING, *COMPUTING):
    setattr(Remote, _name, _binary(_name))


class _Member:
    """A number or a text of the program that is a member of an enumeration there."""

    __members__ = ()
    remote: Remote

    def __getattr__(self, name: str) -> Any:
        return getattr(self.remote, name)

    def __format__(self, spec: str) -> str:
        return format(self.remote, spec)

    def __str__(self) -> str:
        return str(self.remote)

    def __repr__(self) -> str:
        return repr(self.remote)


class _Number(_Member, int):
    pass


class _Text(_Member, str):  # noqa: SLOT000 it has a `remote`
    pass


class RpcClient(Peer):
    """The tests' end."""

    def __init__(self, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        from _thread import RLock

        super().__init__(read, write)
        self._error_types: dict[str, type[BaseException]] = {}
        self._remotes: dict[int, Remote] = {}
        self._members: dict[int, _Member] = {}
        self._lock = RLock()
        """Held from a request to its response: tests may use several threads."""

    def import_name(self, name: str) -> Any:
        """Give what the response defines under a name; of a module, the tester's own.

        Raises:
            AttributeError: It defines none.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        match self.request("global", name):
            case ["object", value]:
                return value
            case ["error", [*names]]:
                return self._error_type([str(each) for each in names])
            case ["module", None] if name in sys.stdlib_module_names:
                return __import__(name)
        raise AttributeError(name)

    def request(self, verb: str, *given: object) -> Any:
        with self._lock:
            self._write(f'["{verb}"{"".join("," + self._encode(each) for each in given)}]'.encode())
            return self._result(may_end_loop=verb == "anext")[0]

    def call(self, target: Remote, name: str, arguments: tuple[object, ...], named: dict[str, object]) -> Any:
        with self._lock:
            sent = [target, name, list(arguments), named]
            self._write(f'["call",{",".join(self._encode(each) for each in sent)}]'.encode())
            value, changed = self._result(may_end_loop=name == "__next__")
        match changed:
            case [[*theirs], {**theirs_named}, [*same]]:
                for ours, their in zip(arguments, theirs, strict=False):
                    _apply_changes(ours, their)
                for key, ours in named.items():
                    _apply_changes(ours, theirs_named.get(key))
                if same:
                    return arguments[same[0]]
        return value

    def _result(self, *, may_end_loop: bool) -> tuple[Any, Any]:
        verb, *parts = self._receive()
        if verb == "raise":
            names, arguments, text, attributes = (decode(part, self._restore) for part in parts)
            kind = self._error_type([str(name) for name in names])  # type: ignore[attr-defined]
            if issubclass(kind, _LOOP_ENDS) and not may_end_loop:
                kind = RuntimeError
            error = error_of(kind, arguments)  # type: ignore[arg-type]
            error.__dict__.update(attributes)  # type: ignore[call-overload]
            if kind.__module__ == SOLUTION:
                error.__dict__["_text"] = text
            raise error
        value, changed = (decode(part, self._restore) for part in parts)
        return value, changed

    def _error_type(self, names: list[str]) -> type[BaseException]:
        """Give a builtin error, or make one that is none, with the bases that it has in the program."""
        first = names[0] if names else ""
        builtin = builtin_error(names)
        if builtin.__name__ == first:
            return builtin
        if first not in self._error_types:
            base = self._error_type(names[1:]) if len(names) > 1 else RuntimeError
            self._error_types[first] = type(first, (base,), {"__str__": _text_of, "__module__": SOLUTION})
        return self._error_types[first]

    def _export_object(self, value: object) -> str:
        if isinstance(value, _Member):
            value = value.remote
        if isinstance(value, Remote):
            return f'{{"o":{value.__dict__["_number"]}}}'
        if isinstance(value, int | str):
            return encode(value)
        if _is_of_tests(value):
            return f'{{"y":{self._number_of(value)}}}'
        if not callable(value):
            raise TypeError(f"a test passes an object of type {type(value).__name__} to the program")
        return f'{{"k":{self._number_of(value)}}}'

    def _restore_object(self, tree: dict[str, Any]) -> object:
        ((tag, number),) = tree.items()
        match tag, number:
            case "y" | "k", int() if 0 <= number < len(self._exported):
                return self._exported[number]
            case "h", [plain, int(number)]:
                return self._member(decode(plain), number)
            case "w", int():
                return self._await(Remote(self, number))
            case "o", int():
                return self._remotes.setdefault(number, Remote(self, number))
        raise ValueError(f"no value: {tag!r}")

    def _member(self, plain: Any, number: int) -> _Member:
        if number not in self._members:
            member = _Number(plain) if isinstance(plain, int) else _Text(plain)
            member.remote = Remote(self, number)
            self._members[number] = member
        return self._members[number]

    async def _await(self, coroutine: Remote) -> Any:
        return self.request("await", coroutine)

    def _object(self, number: int) -> Any:
        """Give an object that the tests passed, of a class that they define."""
        if not _is_of_tests(self._exported[number]):
            raise TypeError("the program accesses what is no object of the tests")
        return self._exported[number]

    def _handle(self, verb: str, parts: list[Any]) -> None:
        number, *given = parts
        self._respond(lambda: self._execute(verb, number, [decode(part, self._restore) for part in given]))

    def _execute(self, verb: str, number: int, given: list[Any]) -> tuple[object, object]:
        match verb, given:
            case "call", [arguments, named]:
                return self._exported[number](*arguments, **named), None
            case "get", [str(name)] if not name.startswith("_"):
                return getattr(self._object(number), name), None
            case "set", [str(name), value] if not name.startswith("_"):
                setattr(self._object(number), name, value)
                return None, None
        raise TypeError(f"the program requests {verb}")


def _is_of_tests(value: object) -> bool:
    """Whether an object is one of a class that the tests define: the program may ask its public attributes."""
    return type(value).__module__ == TESTS and not isinstance(value, type)


def _text_of(error: BaseException) -> str:
    return str(error.__dict__.get("_text", ", ".join(map(str, error.args))))


def _apply_changes(ours: Any, theirs: Any) -> None:
    """Change a container as the call changed its copy."""
    if type(ours) not in {list, dict, set, bytearray} or type(ours) is not type(theirs) or ours == theirs:
        return
    match ours, theirs:
        case (list(), list()) | (bytearray(), bytearray()):
            ours[:] = theirs
        case (dict(), dict()) | (set(), set()):
            ours.clear()
            ours.update(theirs)
