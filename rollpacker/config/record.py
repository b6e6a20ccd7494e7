"""A run's own record of its configuration: `config.yaml` in its folder, resolved, as its last attempt had it.

Invariant: `RunConfig.model_validate` takes the content back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import yaml

if TYPE_CHECKING:
    from pydantic import BaseModel

CONFIG_FILE: Final = "config.yaml"
"""In `run.dir`."""


def to_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML, in the schema's order."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, width=1000)
