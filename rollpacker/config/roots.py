"""The primary files of `conf/`, each with the schema that judges it, and the groups that they offer.

Needs neither Hydra nor anything heavier than YAML, so that help texts are fast.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel

from rollpacker.config.keys import REQUIRED, default_tree
from rollpacker.config.schema import RunConfig, ScoreConfig

DEFAULT_RUN_DIR = "runs/${now:%Y-%m-%d_%H-%M-%S}-${system.name}"
"""Where a run writes when the user does not say."""

Schema_co = TypeVar("Schema_co", bound=BaseModel, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Root(Generic[Schema_co]):
    """One primary file of `conf/` and the schema that judges what it composes."""

    name: str
    """Of the file, without `.yaml`."""
    schema: type[Schema_co]
    command: str
    """Which help text lists its keys."""
    base_name: str
    """Under which the schema's default tree is known to Hydra."""

    def defaults(self) -> dict[str, Any]:
        """The base configuration: every legal key, `???` where the user must set it."""
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


def groups(root: Root[BaseModel]) -> dict[str, Group]:
    """The groups in the primary file's defaults list, in its order, by name."""
    primary = yaml.safe_load((conf_dir() / f"{root.name}.yaml").read_text(encoding="utf-8"))
    defaults = [next(iter(entry.items())) for entry in primary["defaults"] if isinstance(entry, dict)]
    return {
        name: Group(
            name=name, options=tuple(sorted(path.stem for path in (conf_dir() / name).glob("*.yaml"))), default=default
        )
        for name, default in defaults
        if not name.startswith(("override ", "optional "))
    }


def option_summary(group: str, option: str) -> str:
    """What an option is, from the comment that its file begins with: the first sentence."""
    return " ".join(_comment(group, option)).partition(". ")[0].rstrip(".") + "."


def option_notes(group: str, option: str) -> str:
    """What else that comment says, after its first blank line."""
    return "\n".join(_comment(group, option)).partition("\n\n")[2]


def _comment(group: str, option: str) -> list[str]:
    lines = (conf_dir() / group / f"{option}.yaml").read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("#").strip() for line in lines if line.startswith("#") and "@package" not in line]


def default_choices(root: Root[BaseModel]) -> dict[str, object]:
    """The values that hold when the user says nothing and that the schema alone does not give, by dotted key."""
    values: dict[str, object] = {"run.dir": DEFAULT_RUN_DIR} if root.schema is RunConfig else {}
    for name, group in groups(root).items():
        if group.default is not None:
            content = yaml.safe_load((conf_dir() / name / f"{group.default}.yaml").read_text(encoding="utf-8")) or {}
            values |= {f"{name}.{key}": value for key, value in content.items()}
    return values
