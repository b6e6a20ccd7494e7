"""The tests' end of the connection: `Remote` objects, and what the program may request."""

# ruff: noqa: SLF001 what a proxy has itself begins with `_rpc`: all other names are the program's

from __future__ import annotations

import builtins
import sys

from rollpacker.rewards.sandbox.loop_ends import is_caught
from rollpacker.rewards.sandbox.rpc import (
    COMBINING,
    COMPARING,
    COMPUTING,
    GENERATOR,
    TESTS,
    UNARY,
    Peer,
    library_class,
    operation,
)
from rollpacker.rewards.sandbox.suppression import skips_no_check
from rollpacker.rewards.sandbox.values import CHANGEABLE, SOLUTION, decode, encode

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any

_DATA_ATTRIBUTES = {
    *(name for kind in (*CHANGEABLE, int, float, complex, str, bytes, tuple, frozenset, range) for name in dir(kind)),
    *("appendleft", "extendleft", "popleft", "rotate", "maxlen", "most_common", "move_to_end"),
}
"""What plain data has; the last are of `collections`."""

_SEARCHING = {
    *("count", "index", "issubset", "issuperset", "isdisjoint"),
    *("union", "intersection", "difference", "symmetric_difference"),
}
"""Methods of containers that only read: those of a plain copy are called."""

_BASES = {kind.__name__: kind for kind in (object, *CHANGEABLE)}
"""Plain data that an object's class inherits from, or object."""

_LEGIBLE = (
    *("__name__", "__qualname__", "__doc__", "__wrapped__", "__annotations__", "__defaults__", "__kwdefaults__"),
    *("__bases__", "__mro__", "__members__", "__slots__"),
)
"""Special attributes that describe a function or class."""

_LOOP_ENDS = (StopIteration, StopAsyncIteration)
"""They end a loop silently where a function raises them; a function's is a `RuntimeError`, as in a generator, but where
the tests catch it as they call the function."""


class Remote:
    """An object of the program, in the tester; for each name of a class there, a class of its own."""

    def __init__(self, client: RpcClient, number: int, data: type = object) -> None:
        fields = {"": client, "_number": number, "_data": data, "_is_plain": True, "_is_told": False}
        for name, value in fields.items():
            object.__setattr__(self, f"_rpc{name}", value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _LEGIBLE:
            raise AttributeError(name)
        if name not in _DATA_ATTRIBUTES:
            object.__setattr__(self, "_rpc_is_plain", False)
        if name in _SEARCHING and hasattr(self._rpc_data, name) and not self._rpc_is_told:
            return getattr(plain_of(self), name)
        return self._rpc.request("get", self, name)

    __doc__ = property(lambda self: self.__getattr__("__doc__"))
    __dict__ = property(lambda self: self._rpc.request("get", self, "__dict__"))

    def __setattr__(self, name: str, value: object) -> None:
        self._rpc.request("set", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._rpc.request("delete", self, name)

    def __instancecheck__(self, instance: object) -> bool:
        is_theirs = isinstance(instance, Remote | _Member) or hasattr(type(instance), "_fields")
        return is_theirs and self._rpc.request("isinstance", instance, self) is True

    def __subclasscheck__(self, kind: object) -> bool:
        return isinstance(kind, Remote) and self._rpc.request("issubclass", kind, self) is True

    def __exit__(
        self, kind: object = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> Any:
        value = self._rpc.call(self, "__exit__", (error,), {})
        return self._rpc.suppression(value, error, trace)

    async def __aexit__(
        self, kind: object = None, error: BaseException | None = None, trace: TracebackType | None = None
    ) -> Any:
        value = await self._rpc.call(self, "__aexit__", (error,), {})
        return self._rpc.suppression(value, error, trace)

    async def __anext__(self) -> Any:
        return self._rpc.request("anext", self)

    def __deepcopy__(self, _copied: object) -> Any:
        return self._rpc.call(self, "__deepcopy__", (), {})


class _RemoteFunction(Remote):
    """A function of the program; in a class of the tests a method."""

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        from types import MethodType

        bound: Any = MethodType
        return self if instance is None else bound(self, instance)


def plain_of(value: object) -> object:
    """Give the plain data that an object of the program is now, or what is given, where it is none."""
    if not isinstance(value, Remote) or value._rpc_data is object or value._rpc_is_told:
        return value
    return value._rpc.request("copy", value)


def _unary(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: object, **named: object) -> Any:
        if self._rpc_is_told:
            raise TypeError(f"{name} of what the response computed from a value of the tests")
        return self._rpc.call(self, name, arguments, named)

    return method


def _binary(name: str) -> Callable[[Remote, object], Any]:
    def method(self: Remote, other: object) -> Any:
        call, is_data = self._rpc.call, self._rpc_data is not object and not self._rpc_is_told
        if isinstance(other, Remote) or not (self._rpc_is_plain or is_data):
            return call(self, name, (other,), {})
        if name == "__contains__" and not is_data:
            return any(other is each or other == each for each in self)  # type: ignore[attr-defined]
        if name in COMPARING:
            return _computed(name, self, other)
        try:
            computed = _computed(name, self, other)  # before the call, which may change the object
        except TypeError:  # plain data has no such operator
            computed = NotImplemented
        value = call(self, name, (other,), {})
        if not isinstance(value, Remote):
            return computed
        if is_data:
            return _accepted(value, computed, name, self)
        if name in COMPUTING or self._rpc_is_told:
            object.__setattr__(value, "_rpc_is_told", True)
        return value

    return method


def _computed(name: str, remote: Remote, other: object) -> Any:
    """Apply an operator to the plain data that an object is."""
    value = plain_of(remote)
    return NotImplemented if value is remote else operation(name)(value, other)


def _accepted(value: Remote, computed: object, name: str, remote: Remote) -> Any:
    """Give what the program's operator gave; it is plain data only where the tester computes the same."""
    if value._rpc_data is type(computed) and plain_of(value) == computed:
        return value if value is remote else computed
    if value is not remote:
        value = value._rpc.without_data(value)
    if name in COMPUTING or value is remote:
        object.__setattr__(value, "_rpc_is_told", True)
    return value


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

    own_module, other_module = TESTS, SOLUTION

    def __init__(self, source: str, read: Callable[[], bytes], write: Callable[[bytes], None]) -> None:
        from _thread import RLock

        super().__init__(read, write)
        self._source = source
        self._classes: dict[tuple[str, str], type[Remote]] = {}
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
            error = self._raised(*parts)
            if isinstance(error, _LOOP_ENDS) and not may_end_loop:
                is_allowed = is_caught(self._source, sys._getframe(), type(error).__name__)
                error = error if is_allowed else RuntimeError(*error.args)
            raise error
        value, changed = (decode(part, self._restore) for part in parts)
        return value, changed

    def suppression(self, value: object, error: BaseException | None, trace: TracebackType | None) -> object:
        """Give what the end of a `with` returned, or False where it would skip a check of the tests."""
        if trace is None:
            return value
        is_allowed = isinstance(error, Exception) and not isinstance(error, AssertionError)
        return value if is_allowed and skips_no_check(self._source, trace.tb_frame) else False

    def _export_object(self, value: object) -> str:
        if isinstance(value, _Member):
            value = value.remote
        if isinstance(value, Remote):
            return f'{{"o":{value._rpc_number}}}'
        if isinstance(value, int | str):
            return encode(value)
        if isinstance(value, BaseException):
            return f'{{"P":[{self._number_of(value)},{self._encode_error(value)}]}}'
        if _is_of_tests(value):
            return f'{{"y":{self._number_of(value)}}}'
        if not callable(value):
            if hasattr(type(value), "__next__"):
                return f'{{"N":{self._number_of(value)}}}'
            raise TypeError(f"a test passes an object of type {type(value).__name__} to the program")
        described = [self._number_of(value), *(getattr(value, name, None) for name in ("__name__", "__doc__"))]
        return f'{{"k":{encode(described)}}}'

    def _restore_object(self, tree: dict[str, Any]) -> object:
        ((tag, number),) = tree.items()
        match tag, number:
            case "y" | "k", int() if 0 <= number < len(self._exported):
                return self._exported[number]
            case "h", [plain, int(number)]:
                return self._member(decode(plain), number)
            case "w", int():
                return self._await(Remote(self, number))
            case "o", [int(number), str(class_name), str(path), str(data)] if data in _BASES:
                kind = self._class(class_name, path)
                return self._remotes.setdefault(number, kind(self, number, _BASES[data]))
        raise ValueError(f"no value: {tag!r}")

    def _member(self, plain: Any, number: int) -> _Member:
        if number not in self._members:
            member = _Number(plain) if isinstance(plain, int) else _Text(plain)
            member.remote = Remote(self, number)
            self._members[number] = member
        return self._members[number]

    def without_data(self, remote: Remote) -> Remote:
        """Give an object that is plain data as one that is none."""
        if remote._rpc_data is object:
            return remote
        return self._class(type(remote).__name__, "")(self, remote._rpc_number)

    def _class(self, name: str, path: str) -> type[Remote]:
        """Give the class of objects of the program.

        Args:
            name: Of their class there; here it has none of plain data's.
            path: Of the library's class that this inherits from, as `isinstance` shall find; it may be empty.
        """
        if (name, path) not in self._classes:
            own = {"__module__": SOLUTION, "__doc__": vars(Remote)["__doc__"]}
            base = _RemoteFunction if name == "function" else Remote
            if library := library_class(path):
                seen = _subclass(name, library)
                own["__class__"] = property(lambda _self: seen)
            own_name = "Remote" if name in vars(builtins) else name
            self._classes[name, path] = kind = type(own_name, (base,), own)
            if path == GENERATOR:
                from collections.abc import Generator

                Generator.register(kind)  # as `typing` asks
        return self._classes[name, path]

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
            case "next", []:
                return next(self._exported[number]), None
            case "get", [str(name)] if not name.startswith("_"):
                return getattr(self._object(number), name), None
            case "set", [str(name), value] if not name.startswith("_"):
                setattr(self._object(number), name, value)
                return None, None
        raise TypeError(f"the program requests {verb}")


def _subclass(name: str, base: type) -> type:
    """Make a subclass, if the base has not the name itself."""
    import types

    return base if base.__name__ == name else types.new_class(name, (base,))


def _is_of_tests(value: object) -> bool:
    """Whether an object is one of a class that the tests define: the program may ask its public attributes."""
    return type(value).__module__ == TESTS and not isinstance(value, type)


def _apply_changes(ours: Any, theirs: Any) -> None:
    """Change a container as the call changed its copy."""
    kind = type(ours)
    if kind not in {list, dict, set, bytearray} and kind.__module__ != "collections":
        return
    if kind is not type(theirs) or ours == theirs:
        return
    match ours:
        case list() | bytearray():
            ours[:] = theirs
        case dict() | set():
            ours.clear()
            ours.update(theirs)
        case _ if kind.__name__ == "deque":
            ours.clear()
            ours.extend(theirs)
