"""Every legal key of a schema as plain data: its type, bounds, default and documentation.

Derived from the schema, where a key is described once, under its field. Help texts, Hydra's base configuration, the
nearest legal name of a misspelt key and the error messages are derived from here.
"""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import math
import textwrap
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from rollpacker.config.sections.base import CEILINGS, LARGEST, SMALLEST, Kind

REQUIRED = "???"
"""The default of a key that the user must set, in OmegaConf's spelling."""

NEAREST_CUTOFF = 0.6
"""Least similarity, as difflib measures it, of a name worth suggesting; difflib's own default."""

_NEAREST_ELSEWHERE = 0.75
"""Of names in different sections, and of those without one: `offload` and `workload` are 0.67 alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One leaf of the configuration."""

    name: str
    """Dotted, such as `rollout.num_prompts`."""
    kind: str
    """Its type, such as `an integer`."""
    bounds: str
    """Such as `at least 1`; empty when every value of the type is legal."""
    bounds_of_its_own: str
    """Without the limits that all keys of its type share."""
    choices: tuple[str, ...]
    """All legal values, when they are few."""
    default: object
    """As plain YAML data; `REQUIRED` when the user must set it."""
    section: type[BaseModel]
    """The section of the schema that has it."""
    is_optional: bool
    """True when null is legal."""
    is_mapping: bool
    """True when it is a mapping, whose names the user chooses."""
    absent_section: str
    """The nearest section above it that is null unless a key in it is set; empty when there is none."""

    @property
    def doc(self) -> str:
        """The docstring of the field in the schema, as one line."""
        return _docs(self.section).get(self.name.rpartition(".")[2], "")

    @property
    def is_path(self) -> bool:
        """True when it names files or folders: one, or a list of them."""
        return self.kind.startswith("a path")

    @property
    def legal(self) -> str:
        """What is allowed, as the end of a sentence."""
        return self._sentence(self.bounds)

    @property
    def described(self) -> str:
        """The same without the limits that no run reaches."""
        return self._sentence(self.bounds_of_its_own)

    def _sentence(self, bounds: str) -> str:
        return ", ".join(part for part in (self.kind, bounds, "or null" if self.is_optional else "") if part)


@functools.cache
def legal_keys(schema: type[BaseModel]) -> Mapping[str, Key]:
    """Every leaf by its dotted name, in the schema's order."""
    return types.MappingProxyType({key.name: key for key in _walk(schema, None, "")})


def section_names(schema: type[BaseModel]) -> tuple[str, ...]:
    """Every inner node by its dotted name, parents first."""
    names: dict[str, None] = {}
    for name in legal_keys(schema):
        parts = name.split(".")
        for depth in range(1, len(parts)):
            names.setdefault(".".join(parts[:depth]))
    return tuple(names)


def section_docs(schema: type[BaseModel]) -> dict[str, str]:
    """The docstring of every top-level section, as one line without a full stop at its end."""
    sections = {name: section_of(field) for name, field in schema.model_fields.items()}
    return {
        name: " ".join((section.__doc__ or "").split()).rstrip(".") for name, section in sections.items() if section
    }


def default_tree(schema: type[BaseModel]) -> dict[str, Any]:
    """The schema's defaults as nested plain data."""
    tree: dict[str, Any] = {}
    for key in legal_keys(schema).values():
        *sections, leaf = key.name.split(".")
        node = tree
        for section in sections:
            node = node.setdefault(section, {})
        node[leaf] = key.default
    return tree


def value_at(tree: Mapping[str, Any], name: str) -> Any:
    """The value of a dotted key; None where a section on the way is absent."""
    value: Any = tree
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def nearest(name: str, legal: Iterable[str]) -> tuple[str, ...]:
    """The legal name most similar to `name`, alone; none when none is similar enough.

    A dotted name is compared whole and by its last part, so that `num_steps` finds `run.num_steps`.
    """

    def similarity(candidate: str) -> tuple[float, float]:
        whole = difflib.SequenceMatcher(a=name.lower(), b=candidate.lower()).ratio()
        leaf, candidate_leaf = name.rpartition(".")[2].lower(), candidate.rpartition(".")[2].lower()
        # A leaf in another section is a worse match than the same distance in the right one.
        return max(whole, 0.9 * difflib.SequenceMatcher(a=leaf, b=candidate_leaf).ratio()), whole

    scores = {candidate: similarity(candidate) for candidate in sorted(legal)}
    best = max(scores, key=scores.__getitem__, default=None)
    return (best,) if best is not None and scores[best][0] >= NEAREST_CUTOFF else ()


def is_near(name: str, key: str) -> bool:
    """Whether the nearest key is near enough to be the one that is meant: in another section it has to be nearer."""
    section, _, leaf = name.rpartition(".")
    if section and key.startswith(f"{section}."):
        return True
    pairs = ((name, key), (leaf, key.rpartition(".")[2]))
    return any(difflib.SequenceMatcher(a=a, b=b).ratio() >= _NEAREST_ELSEWHERE for a, b in pairs)


def _walk(schema: type[BaseModel], values: BaseModel | None, prefix: str, absent_section: str = "") -> Iterable[Key]:
    for name, field in schema.model_fields.items():
        dotted = f"{prefix}{name}"
        given = field.get_default(call_default_factory=True) if values is None else getattr(values, name)
        section = section_of(field)
        if section is not None:
            is_absent = given is None and not field.is_required()
            yield from _walk(
                section,
                None if field.is_required() else given,
                f"{dotted}.",
                dotted if is_absent else absent_section,
            )
        else:
            is_required = values is None and field.is_required()
            yield _leaf(dotted, schema, field, REQUIRED if is_required else given, absent_section)


@functools.cache
def _docs(section: type[Any]) -> Mapping[str, str]:
    """The docstrings of a section's fields, read from its source: pydantic would read all of them at every start."""
    if section is BaseModel or not issubclass(section, BaseModel):
        return {}
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    assert isinstance(definition, ast.ClassDef)
    found = {name: text for base in section.__bases__ for name, text in _docs(base).items()}
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = " ".join(text.split())
    return found


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, if it holds one."""
    annotation, _ = _without_none(field.annotation)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None


def _leaf(name: str, section: type[BaseModel], field: FieldInfo, default: object, absent_section: str) -> Key:
    annotation, is_optional = _without_none(field.annotation)
    metadata = [*field.metadata]
    if typing.get_origin(annotation) is Annotated:
        annotation, *own = typing.get_args(annotation)
        metadata += own
    choices: tuple[str, ...] = ()
    if typing.get_origin(annotation) is Literal:
        choices = tuple(str(choice) for choice in typing.get_args(annotation))
    return Key(
        name=name,
        kind=_stated_kind(metadata) or _kind(annotation),
        bounds=_bounds(metadata),
        bounds_of_its_own=_bounds(metadata, is_brief=True),
        choices=choices,
        default=_plain(default),
        section=section,
        is_optional=is_optional,
        is_mapping=typing.get_origin(annotation) is dict,
        absent_section=absent_section,
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in {Union, types.UnionType}:
        rest = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(rest) == 1:
            return rest[0], True
    return annotation, False


def _kind(annotation: Any) -> str:
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        bounds = _bounds(parts[1:], is_brief=True)
        return _stated_kind(parts[1:]) or (f"{_kind(parts[0])} {bounds}" if bounds else _kind(parts[0]))
    if origin is Literal:
        return "one of " + ", ".join(str(part) for part in parts)
    if origin is tuple:
        return _kind_of_tuple(parts)
    if origin is dict:
        return f"a mapping of each name to {_kind(parts[1])}"
    if origin in {Union, types.UnionType}:
        return " or ".join(_kind(part) for part in parts)
    names: Mapping[Any, str] = {
        bool: "true or false",
        int: "an integer",
        float: "a number",
        str: "a text",
        Path: "a path",
    }
    return names[annotation]


def _kind_of_tuple(parts: tuple[Any, ...]) -> str:
    if parts[-1] is Ellipsis:
        return f"a list, each {_kind(parts[0])}"
    return f"a list of {len(parts)}: " + ", ".join(_kind(part) for part in parts)


def _stated_kind(metadata: Iterable[Any]) -> str:
    return next((item.words for item in metadata if isinstance(item, Kind)), "")


def _flatten(metadata: Iterable[Any]) -> list[Any]:
    return [item for entry in metadata for item in (entry.metadata if isinstance(entry, FieldInfo) else [entry])]


def _bounds(metadata: Iterable[Any], *, is_brief: bool = False) -> str:
    """The narrowest bound of each side, as text; in brief without those of a type."""
    parts: list[str] = []
    lowest: tuple[Any, str] = (-math.inf, "")
    highest: tuple[Any, str] = (math.inf, "")
    for item in _flatten(metadata):
        match item:
            case annotated_types.MinLen(min_length=1):
                parts.append("not empty")
            case annotated_types.Ge(ge=bound):
                lowest = max(lowest, (bound, "at least"))
            case annotated_types.Gt(gt=bound):
                lowest = max(lowest, (bound, "above"))
            case annotated_types.Le(le=bound):
                highest = min(highest, (bound, "at most"))
            case annotated_types.Lt(lt=bound):
                highest = min(highest, (bound, "below"))
    if is_brief:
        lowest = {-LARGEST: (-math.inf, ""), SMALLEST: (0, "above")}.get(lowest[0], lowest)
        highest = (math.inf, "") if highest[0] in CEILINGS else highest
    parts += [f"{word} {_figure(bound)}" for bound, word in (lowest, highest) if word]
    return " and ".join(parts)


def _figure(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def _plain(value: object) -> object:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value
