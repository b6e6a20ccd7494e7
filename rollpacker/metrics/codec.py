"""Turns events, commands and settings into JSON, and what was parsed of it back: pydantic does both, by the type hints.

Invariant: decoding what was encoded gives an equal value, for every member of the closed unions `Event` and `Command`,
and for `SchedulerSettings`. A new field or a new member needs no line here. What pydantic needs to know of a class is
worked out when the first of its kind comes, for a hundred of them take a tenth of a second.

A member is `{"type": "Launch", ...its fields}`, any other dataclass an object of its fields. Ids are arrays, because
they are tuples: `[3,[0,"q7"],1]`. A fraction is text, `"5/4"`.
"""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from typing import Any, Generic, TypeVar, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

T = TypeVar("T")

_CONFIG = ConfigDict(strict=True, extra="forbid", ser_json_inf_nan="constants")


class UnionCodec(Generic[T]):
    """Encodes and decodes the members of one closed union of dataclasses."""

    def __init__(self, union: types.UnionType) -> None:
        """Prepare for a union such as `Event`."""
        self._members: dict[str, type] = {member.__name__: member for member in typing.get_args(union)}
        self._forms: dict[Any, tuple[bytes, Any]] = {}
        """How the text of a member begins, and what writes its fields."""

    def encode(self, value: T) -> str:
        """Return JSON text without spaces: tuples are arrays there, enumerations their text."""
        beginning, serializer = self._forms.get(type(value)) or self._form_of(type(value))
        try:
            text = serializer.to_json((value,))
        except PydanticSerializationError:
            text = serializer.to_json((value,), fallback=_item_of, warnings=False)
        return str(beginning + text[2:-1], "utf-8")

    def _form_of(self, member: Any) -> tuple[bytes, Any]:
        beginning = f'{{"type":"{member.__name__}"{"," if dataclasses.fields(member) else ""}'
        form = self._forms[member] = beginning.encode(), _adapter(member).serializer
        return form

    def check_type(self, plain: Any) -> None:
        """Raise ValueError unless parsed JSON names a member."""
        if not isinstance(plain, dict):
            raise ValueError(f"{plain!r} is no object")  # noqa: TRY004 whatever is wrong with the data is a ValueError
        name = plain.get("type")
        if not isinstance(name, str) or name not in self._members:
            raise ValueError(f"type {name!r} is none of {', '.join(self._members)}")

    def decode(self, plain: Any) -> T:
        """Rebuild a member from parsed JSON; raises ValueError, saying what does not fit."""
        self.check_type(plain)
        fields = {name: value for name, value in plain.items() if name != "type"}
        value: T = from_plain(self._members[plain["type"]], fields)
        return value


def encode(value: Any) -> str:
    """Write a dataclass as JSON text without spaces."""
    return _adapter(cast("Any", type(value))).dump_json((value,))[1:-1].decode()


def to_plain(value: Any) -> Any:
    """Turn a dataclass into JSON data."""
    return _adapter(cast("Any", type(value))).dump_python((value,), mode="json")[0]


def from_plain(kind: type[T], plain: Any) -> T:
    """Undo `to_plain`, as `decode` undoes `encode`."""
    return decode(kind, to_json(plain))


def decode(kind: type[T], text: bytes) -> T:
    """Undo `encode`, for a dataclass; a field that is missing has its default, if it has one.

    Raises ValueError, saying what does not fit, and what `kind` raises.
    """
    try:
        (value,) = _adapter(cast("Any", kind)).validate_json(b"[" + text + b"]")
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}" for fault in error.errors()]
        raise ValueError(f"{kind.__name__} does not fit: {'; '.join(faults)}") from None
    result: T = value
    return result


def _item_of(number: Any) -> Any:
    """Python's own of a number that numpy or torch has counted."""
    return number.item()


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Of a tuple of one, because pydantic takes no configuration for a dataclass of its own."""
    form: Any = types.GenericAlias(tuple, kind)
    return TypeAdapter(form, config=_CONFIG)
