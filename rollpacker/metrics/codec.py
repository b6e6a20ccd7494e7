"""Turns events and commands into JSON text, and what was parsed of it back, by their type hints alone.

Invariant: decoding what was encoded gives an equal value, for every member of the closed unions `Event` and `Command`.
A new field or a new member needs no line here, as long as its types are built of those that `_decoder_of` knows; a
type that it does not know fails when the codec is made, not in the middle of a run.

The text is what `json.dumps` would make of it. A member's form never changes, so it is a template that is made once,
with a hole for each number and each string in it; that takes a third of the time, and a run writes thousands a second.

An object is `{"type": "Launch", ...its fields}`. Ids are arrays, because they are tuples: `[3,[0,"q7"],1]`.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from enum import Enum
from functools import partial
from json.encoder import encode_basestring_ascii
from operator import attrgetter, call
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Decoder = Callable[[Any], Any]
    Encoder = Callable[[Any], str]

T = TypeVar("T")


class UnionCodec(Generic[T]):
    """Encodes and decodes the members of one closed union of dataclasses."""

    def __init__(self, union: types.UnionType) -> None:
        """Prepare for a union such as `Event`; raises TypeError for a type that JSON data cannot give back."""
        self._encoders: dict[type, Encoder] = {}
        self._decoders: dict[str, tuple[type, Mapping[str, Decoder]]] = {}
        for member in typing.get_args(union):
            hints = typing.get_type_hints(member)
            names = tuple(field.name for field in dataclasses.fields(member))
            if "type" in names:
                raise TypeError(f"{member.__name__}.type would hide the name of the class")
            self._decoders[member.__name__] = (member, {name: _decoder_of(hints[name]) for name in names})
            parts = [f'"type":"{member.__name__}"', *(f'"{name}":{_template_of(hints[name])}' for name in names)]
            holes = [hole for name in names for hole in _holes_of(hints[name], name)]
            self._encoders[member] = _filler(f"{{{','.join(parts)}}}", holes)

    def encode(self, value: T) -> str:
        """Return JSON text without spaces: tuples are arrays there, enumerations their text."""
        return self._encoders[type(value)](value)

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


def _template_of(hint: Any) -> str:
    """The form of a value's text, with `%s` where a number, a string or an array of any length comes."""
    hint = _without_new_type(hint)
    if _is_named_tuple(hint):
        return f"[{','.join(map(_template_of, typing.get_type_hints(hint).values()))}]"
    return "%s"


def _holes_of(hint: Any, path: str) -> list[tuple[str, Encoder]]:
    """What fills the template: dotted paths of attributes, and how each is written."""
    hint = _without_new_type(hint)
    if _is_named_tuple(hint):
        hints = typing.get_type_hints(hint)
        return [hole for name in hints for hole in _holes_of(hints[name], f"{path}.{name}")]
    return [(path, _encoder_of(hint))]


def _encoder_of(hint: Any) -> Encoder:
    """How a value is written; its type is one that `_decoder_of` knows."""
    hint = _without_new_type(hint)
    if typing.get_origin(hint) is tuple:
        return partial(_encode_items, _encoder_of(typing.get_args(hint)[0]))
    if _is_named_tuple(hint):
        hints = typing.get_type_hints(hint)
        return _filler(_template_of(hint), [hole for name in hints for hole in _holes_of(hints[name], name)])
    of_scalars: dict[Any, Encoder] = {int: str, str: encode_basestring_ascii, float: _encode_float}
    return of_scalars.get(hint, json.dumps)


def _filler(template: str, holes: Sequence[tuple[str, Encoder]]) -> Encoder:
    """Write a value by filling in a template."""
    if not holes:
        return lambda _: template
    paths, encoders = zip(*holes, strict=True)
    get = attrgetter(*paths)
    if len(holes) == 1:
        return lambda value: template % encoders[0](get(value))
    return lambda value: template % tuple(map(call, encoders, get(value)))


def _encode_items(encode: Encoder, items: tuple[Any, ...]) -> str:
    return f"[{','.join(map(encode, items))}]"


def _encode_float(number: float) -> str:
    return repr(number) if type(number) is float and math.isfinite(number) else json.dumps(number)


def _without_new_type(hint: Any) -> Any:
    return _without_new_type(hint.__supertype__) if isinstance(hint, typing.NewType) else hint


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _decoder_of(hint: Any) -> Decoder:
    hint = _without_new_type(hint)
    if typing.get_origin(hint) is tuple:
        item, *rest = typing.get_args(hint)
        if rest != [Ellipsis]:
            raise TypeError(f"{hint} is not of the form tuple[X, ...]")
        return partial(_decode_tuple, _decoder_of(item))
    if isinstance(hint, type):
        if issubclass(hint, Enum):
            return hint
        if _is_named_tuple(hint):
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
