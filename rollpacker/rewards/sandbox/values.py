"""The serialization of values between a sandbox and its supervisor: JSON, with tags for other types of Python.

Invariant: decoding creates only builtin values, of exactly these types (and `Fraction`, `Decimal`, `UUID`, pure paths,
`deque`, `Counter`, `OrderedDict`, and those of `datetime`; numbers of NumPy become Python's, and a view of a dictionary
is one of a copy). So an object with its own `__eq__` inside is plain data outside, or an `Opaque` that equals nothing.

Used on both sides: inside, it runs in the program's interpreter, where it may be patched; what it then writes is still
only data. It imports little, because every program pays for it.
"""

from __future__ import annotations

import math
from _json import encode_basestring_ascii

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_DEPTH = 200
"""Of nested containers; what is deeper is not encoded."""

OPAQUE = '{"x":'
"""How the text of a value begins that is not encoded. No string holds it: its quotation marks are escaped."""

SOLUTION = "solution"
"""The module of a program, as its tests see it."""

CHANGEABLE = (list, dict, set, bytearray)
"""Plain data that can change: an instance of a subclass that the program defines is an object of its own."""

_SAFE_INT = 1 << 63
"""Larger ones are written in hexadecimal: Python refuses to write and read thousands of decimal digits."""


class Opaque:
    """An object that is no plain data; equals nothing."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<an object of type {self.type_name}>"


def encode(value: object, export: Callable[[object], str] | None = None, depth: int = 0) -> str:  # noqa: C901, PLR0911, PLR0912 one case per type
    """Write a value as JSON text; `export` writes other objects, containers of a program's class, and enumerations."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if export is not None and isinstance(value, CHANGEABLE) and type(value).__module__ == SOLUTION:
        return export(value)
    if export is not None and isinstance(value, str | int) and hasattr(type(value), "__members__"):
        return export(value)
    if isinstance(value, str):
        return encode_basestring_ascii(str.__str__(value))
    if isinstance(value, int):
        number = int.__index__(value)
        return int.__repr__(number) if -_SAFE_INT < number < _SAFE_INT else f'{{"i":"{number:x}"}}'
    if isinstance(value, float):
        return float.__repr__(value) if math.isfinite(value) else f'{{"f":"{float.__repr__(value)}"}}'
    if depth > MAX_DEPTH:
        return f"{OPAQUE}{encode_basestring_ascii(type(value).__name__)}}}"
    if isinstance(value, list):
        return f"[{_items(list.__iter__(value), export, depth)}]"
    if isinstance(value, tuple):
        if export is not None and hasattr(type(value), "_fields"):
            return export(value)
        return f'{{"t":[{_items(tuple.__iter__(value), export, depth)}]}}'
    if isinstance(value, dict):
        pairs = ",".join([f"[{_items(item, export, depth)}]" for item in dict.items(value)])
        if type(value).__module__ == "collections" and type(value).__name__ in _MAPPINGS:
            return f'{{"m":["{type(value).__name__}",[{pairs}]]}}'
        return f'{{"d":[{pairs}]}}'
    if isinstance(value, set):
        return f'{{"s":[{_items(set.__iter__(value), export, depth)}]}}'
    if isinstance(value, frozenset):
        return f'{{"z":[{_items(frozenset.__iter__(value), export, depth)}]}}'
    if isinstance(value, bytes):
        return f'{{"b":"{bytes.hex(value)}"}}'
    if isinstance(value, bytearray):
        return f'{{"a":"{bytearray.hex(value)}"}}'
    if isinstance(value, complex):
        return f'{{"c":["{value.real}","{value.imag}"]}}'
    if isinstance(value, range):
        return f'{{"r":[{value.start},{value.stop},{value.step}]}}'
    if isinstance(value, slice):
        return f'{{"p":[{_items((value.start, value.stop, value.step), export, depth)}]}}'
    for name, view in _VIEWS.items():
        if isinstance(value, view):
            return f'{{"v":["{name}",[{_items(iter(value), export, depth)}]]}}'  # type: ignore[call-overload]
    kind = type(value)
    if kind.__module__ == "collections" and kind.__name__ == "deque":
        return f'{{"l":[[{_items(iter(value), export, depth)}],{encode(value.maxlen)}]}}'  # type: ignore[call-overload,attr-defined]
    if kind.__module__ == "datetime" and (fields := _date_fields(value)):
        return f'{{"e":["{kind.__name__}",{_items(fields, None, depth)}]}}'
    if _WRITTEN.get(kind.__name__) == kind.__module__.partition(".")[0]:
        return f'{{"n":["{kind.__name__}",{encode_basestring_ascii(str(value))}]}}'
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item(), export, depth + 1)  # type: ignore[attr-defined]
    if export is not None:
        return export(value)
    return f"{OPAQUE}{encode_basestring_ascii(kind.__name__)}}}"


def decode(tree: object, restore: Callable[[dict[str, object]], object] | None = None) -> object:
    """Make the value of parsed JSON; `restore` makes objects that the other side exported.

    Raises:
        ValueError: `encode` does not write it. (Malformed data raises TypeError and others, too.)
    """
    if isinstance(tree, list):
        return [decode(item, restore) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if len(tree) != 1:
        raise ValueError(f"no value: {list(tree)[:3]}")
    ((tag, body),) = tree.items()
    if tag in _TAGS:
        return _TAGS[tag](body, restore)
    if tag == "x":
        return Opaque(str(body)[:80])
    if restore is not None:
        return restore(tree)
    raise ValueError(f"no value: {tag!r}")


def _items(values: object, export: Callable[[object], str] | None, depth: int) -> str:
    return ",".join([encode(item, export, depth + 1) for item in values])  # type: ignore[attr-defined]


def _view(parts: list[Any], restore: Callable[[dict[str, object]], object] | None) -> object:
    name, body = parts
    items: Any = decode(body, restore)
    match name:
        case "keys":
            return dict.fromkeys(items).keys()
        case "values":
            return dict(enumerate(items)).values()
        case "items":
            return dict(items).items()
    raise ValueError(f"no view: {name}")


def _deque(parts: list[Any], restore: Callable[[dict[str, object]], object] | None) -> object:
    from collections import deque

    body, most = parts
    items: Any = decode(body, restore)
    return deque(items, most)


def _written(parts: list[str]) -> object:
    name, text = parts
    if name not in _WRITTEN:
        raise ValueError(f"no type: {name}")
    if len(text) > 10_000:  # noqa: PLR2004 more would take long to parse
        raise ValueError("too many digits")
    if name == "Fraction" and "e" in text.lower():  # no fraction writes one, and a short one makes a number of any size
        raise ValueError("an exponent")
    return getattr(__import__(_WRITTEN[name]), name)(text)


def _mapping(parts: list[Any], restore: Callable[[dict[str, object]], object] | None) -> object:
    import collections

    name, pairs = parts
    if name not in _MAPPINGS:
        raise ValueError(f"no mapping: {name}")
    return getattr(collections, name)({decode(key, restore): decode(item, restore) for key, item in pairs})


def _date_fields(value: Any) -> list[object]:
    """Give the arguments that make a value of `datetime`; none where its offset from UTC is not fixed."""
    name = type(value).__name__
    if name == "timezone":
        return [value.utcoffset(None)]
    zone = getattr(value, "tzinfo", None)
    if name not in _DATE_FIELDS or type(zone).__name__ not in {"NoneType", "timezone"}:
        return []
    fields = [getattr(value, each) for each in _DATE_FIELDS[name]]
    return fields if zone is None else [*fields, zone]


def _date(parts: list[Any]) -> object:
    import datetime as dt

    name, *fields = parts
    if name not in _DATE_FIELDS and name != "timezone":
        raise ValueError(f"no date: {name}")
    return getattr(dt, name)(*map(decode, fields))


_VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}
"""Of dictionaries; those of an `OrderedDict` are subclasses."""

_WRITTEN = {
    "Fraction": "fractions",
    "Decimal": "decimal",
    "UUID": "uuid",
    "PurePosixPath": "pathlib",
    "PureWindowsPath": "pathlib",
}
"""Types that are written as text and made from it, and their modules."""

_MAPPINGS = ("Counter", "OrderedDict")
"""Of `collections`; other dictionaries are encoded as plain ones."""

_DAY, _TIME = ("year", "month", "day"), ("hour", "minute", "second", "microsecond")
_DATE_FIELDS = {
    "date": _DAY,
    "time": _TIME,
    "datetime": (*_DAY, *_TIME),
    "timedelta": ("days", "seconds", "microseconds"),
}
"""Attributes and arguments of the types of `datetime`; with a time zone that is no fixed offset they are objects."""

_TAGS: dict[str, Callable[[Any, Any], object]] = {
    "i": lambda body, _restore: int(body, 16),
    "f": lambda body, _restore: float(body),
    "t": lambda body, restore: tuple(decode(item, restore) for item in body),
    "d": lambda body, restore: {decode(key, restore): decode(item, restore) for key, item in body},
    "s": lambda body, restore: {decode(item, restore) for item in body},
    "z": lambda body, restore: frozenset(decode(item, restore) for item in body),
    "b": lambda body, _restore: bytes.fromhex(body),
    "a": lambda body, _restore: bytearray.fromhex(body),
    "c": lambda body, _restore: complex(float(body[0]), float(body[1])),
    "r": lambda body, _restore: range(*body),
    "p": lambda body, restore: slice(*[decode(item, restore) for item in body]),
    "v": _view,
    "l": _deque,
    "n": lambda body, _restore: _written(body),
    "m": _mapping,
    "e": lambda body, _restore: _date(body),
}
