"""A run's own record of its configuration: `config.yaml` in its folder, resolved, as its last attempt had it.

Invariant: `RunConfig.model_validate` takes the content back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import yaml

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic import BaseModel

CONFIG_FILE: Final = "config.yaml"
"""In `run.dir`."""


def to_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML, in the schema's order."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=1000)


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Every section by its name, unjudged: a run of an older version has other keys. None where there is no record."""
    try:
        plain = yaml.safe_load((run_dir / CONFIG_FILE).read_text())
    except (OSError, ValueError, yaml.YAMLError):
        return None
    return plain if isinstance(plain, dict) else None
