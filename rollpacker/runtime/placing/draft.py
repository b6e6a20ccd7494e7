"""A configuration while its keys are chosen, and the choices: what `automatic` works on."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import ValidationError

from rollpacker.config.gpu_map import REST, GpuMap, rest_of
from rollpacker.config.schema import RunConfig
from rollpacker.config.words import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One key that was chosen."""

    key: str
    value: object
    reason: str

    @property
    def word(self) -> str:
        """As an argument."""
        return f"{self.key.removesuffix('.name')}={shown(self.value)}"


class Draft:
    """A configuration with what has been chosen so far."""

    def __init__(self, tree: dict[str, Any], named: AbstractSet[str]) -> None:
        self._tree = copy.deepcopy(tree)
        self._named = named
        self.chosen: dict[str, Choice] = {}

    def is_free(self, key: str) -> bool:
        return key not in self._named

    def value(self, key: str) -> Any:
        node: Any = self._tree
        for part in key.split("."):
            node = node[part]
        return node

    def gpu_map(self, role: Literal["engine", "trainer"]) -> GpuMap:
        """The GPUs of a role; none while no map is chosen."""
        value = self.value(f"placement.{role}")
        text = "none" if value is None else str(value)  # GPU 0 alone is a number
        return rest_of(self.gpu_map("trainer")) if text == REST else GpuMap.parse(text)

    def choose(self, reason: str, values: Mapping[str, object]) -> None:
        """Set keys of which nobody named one. A key whose value stays is no choice; the last choice of a key counts."""
        for key, value in values.items():
            if self.is_free(key) and (key in self.chosen or self.value(key) != value):
                _set(self._tree, key, value)
                self.chosen[key] = Choice(key=key, value=value, reason=reason)

    def freed(self, keys: Collection[str]) -> Draft:
        """The same with these keys as if nobody had named them."""
        return Draft(self._tree, self._named - set(keys))

    def config(self, values: Mapping[str, object] | None = None) -> RunConfig | None:
        """The configuration, with further values for free keys; None where it is not legal."""
        tree = copy.deepcopy(self._tree)
        for key, value in (values or {}).items():
            if self.is_free(key):
                _set(tree, key, value)
        try:
            return RunConfig.model_validate(tree)
        except ValidationError:
            return None


def _set(tree: dict[str, Any], key: str, value: object) -> None:
    *parents, leaf = key.split(".")
    for part in parents:
        tree = tree[part]
    tree[leaf] = value
