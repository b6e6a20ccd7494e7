"""Sections that a configuration may lack: one is there where somebody sets a key of it, be it to its default.

Their keys have no value in Hydra's base configuration, so that a value says that it was set.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rollpacker.config.keys import REQUIRED, Key, legal_keys, value_at
from rollpacker.config.words import in_hydra

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rollpacker.config.roots import Root


def base_tree(root: Root[BaseModel]) -> dict[str, Any]:
    """The defaults, with `???` for keys of sections that are optional; mappings are empty."""
    tree = root.defaults()
    for key in _keys(root):
        if not key.is_mapping:
            parent, _, leaf = key.name.rpartition(".")
            value_at(tree, parent)[leaf] = REQUIRED
    return tree


def with_defaults_of_deleted(root: Root[BaseModel], words: Sequence[str]) -> list[str]:
    """Set a key of these sections to its default where a word deletes it (`~KEY`): Hydra finds no value to delete."""
    return [_with_default(root, word) if word.startswith("~") else word for word in words]


def mark_empty(root: Root[BaseModel], values: dict[str, Any]) -> None:
    """Let an empty mapping that a file has for such a section say that it is there: set a key of it to its default."""
    for key in _keys(root):
        parent, _, leaf = key.name.rpartition(".")
        section = value_at(values, parent)
        if section == {} and parent == key.absent_section and key.default not in (None, REQUIRED, {}):
            section[leaf] = key.default


def take_defaults(root: Root[BaseModel], config: DictConfig) -> frozenset[str]:
    """Give the keys of these sections that have no value their defaults, to which others may refer.

    Returns:
        The sections in which no key was set; theirs stay without a value.
    """
    keys = _keys(root)
    tops = {key.name.partition(".")[0] for key in keys}
    tree = {name: OmegaConf.to_container(config[name]) for name in tops if OmegaConf.is_config(config.get(name))}
    values = [value_at(tree, key.name) for key in keys]
    set_in = {
        key.absent_section
        for key, value in zip(keys, values, strict=True)
        if value not in (None, REQUIRED, {}) or (value is None and not key.is_optional and _is_null(tree, key.name))
    }
    sections = {key.absent_section for key in keys}
    absent = {name for name in sections if not any(f"{each}.".startswith(f"{name}.") for each in set_in)}
    for key, value in zip(keys, values, strict=True):
        if value == REQUIRED != key.default and key.absent_section not in absent:
            parent, _, leaf = key.name.rpartition(".")
            OmegaConf.select(config, parent)[leaf] = key.default
    return frozenset(absent)


def without_absent(tree: Any, absent: Collection[str]) -> Any:
    """Make absent sections null; what is no section in the place of one stays, and the schema refuses it."""
    for name in sorted(absent, key=lambda name: name.count(".")):  # what lies in another one after it
        parent, _, leaf = name.rpartition(".")
        node = value_at(tree, parent) if parent else tree
        if isinstance(node, dict) and isinstance(node.get(leaf, {}), dict):
            node[leaf] = None
    return tree


def _with_default(root: Root[BaseModel], deletion: str) -> str:
    key = legal_keys(root.schema).get(deletion.removeprefix("~"))
    if key is None or not key.absent_section or key.is_mapping or key.default == REQUIRED:
        return deletion
    return f"{key.name}={in_hydra(key.default)}"


def _is_null(tree: Any, name: str) -> bool:
    """Whether a key without a value was given null; else it is deleted, or there is no section that it is in."""
    parent, _, leaf = name.rpartition(".")
    section = value_at(tree, parent)
    return isinstance(section, dict) and leaf in section


@functools.cache
def _keys(root: Root[BaseModel]) -> tuple[Key, ...]:
    return tuple(key for key in legal_keys(root.schema).values() if key.absent_section)
