"""The record of a run's configuration: `config.yaml` in its folder, resolved, of its last attempt.

Invariant: `RunConfig.model_validate` accepts the content. The first line, a comment, names the folder that relative
paths are meant from.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import yaml

from rollpacker.core.errors import DataError
from rollpacker.paths import read_text

if TYPE_CHECKING:
    from pydantic import BaseModel

    from rollpacker.config.schema import RunConfig

CONFIG_FILE: Final = "config.yaml"
"""In `run.dir`."""

_Dumper: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Ten times as fast where PyYAML has its C library."""


def to_yaml(config: BaseModel) -> str:
    """The resolved configuration as YAML, in the schema's order."""
    return yaml.dump(config.model_dump(mode="json"), Dumper=_Dumper, sort_keys=False, width=1000)


_STARTED_IN: Final = "# Relative paths begin in "


def to_record(config: BaseModel) -> str:
    """The content of a run's record, for a run that is started in this folder."""
    return f"{_STARTED_IN}{json.dumps(str(Path.cwd()))}\n{to_yaml(config)}"


def started_in(record: str) -> Path | None:
    """The folder that the run of a record was started in; None where the record does not say."""
    first_line = record.partition("\n")[0]
    if not first_line.startswith(_STARTED_IN):
        return None
    try:
        return Path(json.loads(first_line.removeprefix(_STARTED_IN)))
    except (ValueError, TypeError):
        return None


def differences(config: RunConfig) -> dict[str, object]:
    """The keys whose values are not the defaults, by their dotted names."""
    from rollpacker.config.keys import REQUIRED, legal_keys, value_at  # a report does without the schema
    from rollpacker.config.roots import TRAIN, default_choices

    found: dict[str, object] = {}
    chosen, tree = default_choices(TRAIN), config.model_dump(mode="json")
    for key in legal_keys(type(config)).values():
        value = value_at(tree, key.name)
        default = chosen.get(key.name, key.default)
        if value != default and not (value is None and (default == REQUIRED or key.absent_section)):
            found[key.name] = value
    return found


def read_record(run_dir: Path) -> dict[str, Any] | None:
    """Every section by its name, not validated: a run of another version has other keys. None without a record.

    Raises:
        DataError: There is one that cannot be read, or is no mapping of sections.
    """
    file = run_dir / CONFIG_FILE
    try:
        plain = yaml.safe_load(read_text(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DataError(
            f"{file} cannot be read: {error.strerror}",
            "The run wrote it, with the permissions of its owner",
            "Get the permission to read it, or check its disk",
        ) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise _broken(file, " ".join(str(error).split())) from error
    if not isinstance(plain, dict):
        raise _broken(file, "it is not a mapping")
    for name, section in plain.items():
        if not isinstance(section, dict | None):
            raise _broken(file, f"{name} is not a section")
    return plain


def _broken(file: Path, why: str) -> DataError:
    return DataError(
        f"{file} is broken: {why}",
        "It is YAML with a mapping for each section, as the run wrote it",
        "Copy it again from where the run wrote it",
    )
