"""Turns events and commands into JSON data and back, by their type hints alone.

Invariant: decoding what was encoded gives an equal value, for every member of the closed unions `Event` and `Command`.
A new field or a new member needs no line here, as long as its types are built of those that `_decoder_of` knows; a
type that it does not know fails when the codec is made, not in the middle of a run.

An object is `{"type": "Launch", ...its fields}`. Ids are arrays, because they are tuples: `[3,[0,"q7"],1]`.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Decoder = Callable[[Any], Any]

T = TypeVar("T")


class UnionCodec(Generic[T]):
    """Encodes and decodes the members of one closed union of dataclasses."""

    def __init__(self, union: types.UnionType) -> None:
        """Prepare for a union such as `Event`; raises TypeError for a type that JSON data cannot give back."""
        self._encoders: dict[type, tuple[tuple[str, ...], Callable[[Any], Any]]] = {}
        self._decoders: dict[str, tuple[type, Mapping[str, Decoder]]] = {}
        for member in typing.get_args(union):
            hints = typing.get_type_hints(member)
            names = tuple(field.name for field in dataclasses.fields(member))
            if "type" in names:
                raise TypeError(f"{member.__name__}.type would hide the name of the class")
            self._encoders[member] = (names, attrgetter(*names) if names else lambda _: ())
            self._decoders[member.__name__] = (member, {name: _decoder_of(hints[name]) for name in names})

    def encode(self, value: T) -> dict[str, Any]:
        """Return what `json.dumps` takes: tuples become arrays there, enumerations their text."""
        kind = type(value)
        names, get_values = self._encoders[kind]
        values = get_values(value)
        if len(names) == 1:
            return {"type": kind.__name__, names[0]: values}
        return {"type": kind.__name__, **dict(zip(names, values, strict=True))}

    def decode(self, plain: Any) -> T:
        """Rebuild a member from parsed JSON; raises ValueError, saying what does not fit."""
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r} is no object")  # noqa: TRY004 whatever is wrong with the data is a ValueError
        name = plain.get("type")
        if name not in self._decoders:
            raise ValueError(f"type {name!r} is none of {', '.join(self._decoders)}")
        member, decoders = self._decoders[name]
        if plain.keys() - {"type"} != decoders.keys():
            raise ValueError(f"{name} has the fields {', '.join(decoders)}, not {', '.join(plain.keys() - {'type'})}")
        value: T = member(**{field: decode(plain[field]) for field, decode in decoders.items()})
        return value


def _decoder_of(hint: Any) -> Decoder:
    if isinstance(hint, typing.NewType):
        return _decoder_of(hint.__supertype__)
    if typing.get_origin(hint) is tuple:
        item, *rest = typing.get_args(hint)
        if rest != [Ellipsis]:
            raise TypeError(f"{hint} is not of the form tuple[X, ...]")
        return partial(_decode_tuple, _decoder_of(item))
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return hint
        if issubclass(hint, tuple) and hasattr(hint, "_fields"):
            hints = typing.get_type_hints(hint)
            return partial(_decode_named_tuple, hint, tuple(_decoder_of(hints[name]) for name in hints))
        if hint is float:
            return _decode_float
        if hint in {bool, int, str}:
            return partial(_decode_exactly, hint)
    raise TypeError(f"{hint} cannot be rebuilt from JSON data; teach rollpacker.metrics.codec")


def _decode_exactly(kind: type, plain: Any) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"{plain!r} is no {kind.__name__}")
    return plain


def _decode_float(plain: Any) -> float:
    if type(plain) not in {int, float}:
        raise ValueError(f"{plain!r} is no number")
    return float(plain)


def _decode_tuple(decode_item: Decoder, plain: Any) -> tuple[Any, ...]:
    return tuple(map(decode_item, _decode_exactly(list, plain)))


def _decode_named_tuple(kind: Callable[..., Any], decoders: tuple[Decoder, ...], plain: Any) -> Any:
    items = _decode_exactly(list, plain)
    if len(items) != len(decoders):
        raise ValueError(f"{plain!r} has {len(items)} items, not {len(decoders)}")
    return kind(*(decode(item) for decode, item in zip(decoders, items, strict=True)))
