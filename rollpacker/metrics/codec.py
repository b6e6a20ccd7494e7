"""Turns events, commands and settings into JSON, and what was parsed of it back, by their type hints alone.

Invariant: decoding what was encoded gives an equal value, for every member of the closed unions `Event` and `Command`,
and for `SchedulerSettings`.
A new field or a new member needs no line here, as long as its types are built of those that `_decoder_of` knows; a
type that it does not know fails when the codec is made, not in the middle of a run.

The text is what `json.dumps` would make of it. A member's form never changes, so it is a template that is made once,
with a hole for each number and each string in it; that takes a third of the time, and a run writes thousands a second.

A member is `{"type": "Launch", ...its fields}`, any other dataclass an object of its fields. Ids are arrays, because
they are tuples: `[3,[0,"q7"],1]`. A fraction is text, `"5/4"`.
"""

from __future__ import annotations

import builtins
import dataclasses
import json
import math
import types
import typing
from enum import Enum
from fractions import Fraction
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

    def check_type(self, plain: Any) -> None:
        """Raise ValueError unless parsed JSON names a member."""
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r} is no object")  # noqa: TRY004 whatever is wrong with the data is a ValueError
        name = plain.get("type")
        if not isinstance(name, str) or name not in self._decoders:
            raise ValueError(f"type {name!r} is none of {', '.join(self._decoders)}")

    def decode(self, plain: Any) -> T:
        """Rebuild a member from parsed JSON; raises ValueError, saying what does not fit."""
        self.check_type(plain)
        name = plain["type"]
        member, decoders = self._decoders[name]
        if plain.keys() - {"type"} != decoders.keys():
            raise ValueError(f"{name} has the fields {', '.join(decoders)}, not {', '.join(plain.keys() - {'type'})}")
        value: T = member(**{field: decode(plain[field]) for field, decode in decoders.items()})
        return value


def to_plain(value: Any) -> Any:
    """Turn a dataclass, or anything that its fields may be, into JSON data."""
    if dataclasses.is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return list(map(to_plain, value))
    return str(value) if isinstance(value, Fraction) else value


def from_plain(kind: type[T], plain: Any) -> T:
    """Undo `to_plain`, for a dataclass; a field that is missing has its default, if it has one.

    Raises ValueError, saying what does not fit, and what `kind` raises.
    """
    value: T = _decoder_of(kind)(plain)
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
    decoder = _decoder_of_class(hint) if isinstance(hint, type) else _decoder_of_form(hint)
    if decoder is None:
        raise TypeError(f"{hint} cannot be rebuilt from JSON data; teach rollpacker.metrics.codec")
    return decoder


def _decoder_of_class(kind: type) -> Decoder | None:
    if issubclass(kind, Enum):
        return kind
    if _is_named_tuple(kind) or dataclasses.is_dataclass(kind):
        decoders = {name: _decoder_of(hint) for name, hint in typing.get_type_hints(kind).items()}
        if dataclasses.is_dataclass(kind):
            return partial(_decode_fields, kind, decoders)
        return partial(_decode_items, lambda items: kind(*items), tuple(decoders.values()))
    of_scalars: dict[type, Decoder] = {float: _decode_float, Fraction: _decode_fraction}
    return partial(_decode_exactly, kind) if kind in {bool, int, str} else of_scalars.get(kind)


def _decoder_of_form(hint: Any) -> Decoder | None:
    match typing.get_origin(hint), typing.get_args(hint):
        case builtins.tuple, (item, builtins.Ellipsis):
            return partial(_decode_tuple, _decoder_of(item))
        case builtins.tuple, items:
            return partial(_decode_items, tuple, tuple(map(_decoder_of, items)))
        case types.UnionType, (some, types.NoneType):
            return partial(_decode_optional, _decoder_of(some))
        case typing.Literal, texts:
            return partial(_decode_one_of, texts)
    return None


def _decode_exactly(kind: type, plain: Any) -> Any:
    if type(plain) is not kind:
        raise ValueError(f"{plain!r} is no {kind.__name__}")
    return plain


def _decode_float(plain: Any) -> float:
    if type(plain) not in {int, float}:
        raise ValueError(f"{plain!r} is no number")
    return float(plain)


def _decode_fraction(plain: Any) -> Fraction:
    try:
        return Fraction(_decode_exactly(str, plain))
    except ZeroDivisionError:
        raise ValueError(f"{plain!r} is no fraction") from None


def _decode_optional(decode: Decoder, plain: Any) -> Any:
    return None if plain is None else decode(plain)


def _decode_one_of(texts: tuple[str, ...], plain: Any) -> Any:
    if plain not in texts:
        raise ValueError(f"{plain!r} is none of {', '.join(texts)}")
    return plain


def _decode_fields(kind: type[Any], decoders: Mapping[str, Decoder], plain: Any) -> Any:
    fields = _decode_exactly(dict, plain)
    absent = decoders.keys() - fields.keys()  # an older version did not know them
    has_default = {field.name for field in dataclasses.fields(kind) if field.default is not dataclasses.MISSING}
    if fields.keys() - decoders.keys() or absent - has_default:
        raise ValueError(f"the fields are {', '.join(decoders)}, not {', '.join(fields)}")
    return kind(**{field: decoders[field](value) for field, value in fields.items()})


def _decode_tuple(decode_item: Decoder, plain: Any) -> tuple[Any, ...]:
    return tuple(map(decode_item, _decode_exactly(list, plain)))


def _decode_items(kind: Callable[..., Any], decoders: tuple[Decoder, ...], plain: Any) -> Any:
    items = _decode_exactly(list, plain)
    if len(items) != len(decoders):
        raise ValueError(f"{plain!r} has {len(items)} items, not {len(decoders)}")
    return kind(decode(item) for decode, item in zip(decoders, items, strict=True))
