"""The primary files of `conf/`, each with its schema, and the groups that they offer.

Imports YAML but not Hydra, so that help texts are fast.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel

from rollpacker.config.keys import REQUIRED, default_tree
from rollpacker.config.schema import RunConfig
from rollpacker.config.score_schema import ScoreConfig

DEFAULT_RUN_DIR = "runs/${now:%Y-%m-%d_%H-%M-%S}-${system.name}"
"""The default of `run.dir`."""

Schema_co = TypeVar("Schema_co", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root(Generic[Schema_co]):
    """One primary file of `conf/` and the schema of what it composes."""

    name: str
    """Of the file, without `.yaml`."""
    schema: type[Schema_co]
    command: str
    """The command whose help text lists its keys."""
    base_name: str
    """The name of the schema's default tree in Hydra."""

    def defaults(self) -> dict[str, Any]:
        """The base configuration: every legal key with its default, `???` where it is required."""
        tree = default_tree(self.schema)
        if tree.get("run", {}).get("dir") == REQUIRED:
            tree["run"]["dir"] = DEFAULT_RUN_DIR
        return tree


TRAIN = Root(name="config", schema=RunConfig, command="train", base_name="train_schema")
SCORE = Root(name="score", schema=ScoreConfig, command="score", base_name="score_schema")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A choice among files that set several keys at once."""

    name: str
    options: tuple[str, ...]
    default: str | None


def conf_dir() -> Path:
    """The packaged `conf/`: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "conf"
    return installed if installed.is_dir() else package.parent / "conf"


@functools.cache
def groups(root: Root[BaseModel]) -> Mapping[str, Group]:
    """The groups in the primary file's defaults list, in its order, by name."""
    primary = yaml.safe_load((conf_dir() / f"{root.name}.yaml").read_text(encoding="utf-8"))
    defaults = [next(iter(entry.items())) for entry in primary["defaults"] if isinstance(entry, dict)]
    found = {
        name: Group(
            name=name, options=tuple(sorted(path.stem for path in (conf_dir() / name).glob("*.yaml"))), default=default
        )
        for name, default in defaults
        if not name.startswith(("override ", "optional "))
    }
    return MappingProxyType(found)


def option_summary(group: str, option: str) -> str:
    """The first sentence of the comment at the top of an option's file."""
    return _sentence_and_rest(group, option)[0]


def option_notes(group: str, option: str) -> str:
    """The rest of that comment; lines keep their indentation."""
    return _sentence_and_rest(group, option)[1]


def _sentence_and_rest(group: str, option: str) -> tuple[str, str]:
    lines = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()
    comment = "\n".join(
        line.removeprefix("#").removeprefix(" ").rstrip()
        for line in lines
        if line.startswith("#") and "@package" not in line
    )
    sentence, *rest = re.split(r"\.(?: |\n+)", comment, maxsplit=1)
    return " ".join(sentence.split()).rstrip(".") + ".", "".join(rest)


def default_choices(root: Root[BaseModel]) -> dict[str, object]:
    """The defaults that come from files of `conf/` and not from the schema, by dotted key."""
    values: dict[str, object] = {"run.dir": DEFAULT_RUN_DIR} if root.schema is RunConfig else {}
    for name, group in groups(root).items():
        if group.default is not None:
            content = yaml.safe_load((conf_dir() / name / f"{group.default}.yaml").read_text(encoding="utf-8")) or {}
            values |= {f"{name}.{key}": value for key, value in content.items()}
    return values
