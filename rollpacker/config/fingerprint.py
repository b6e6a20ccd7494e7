"""The values that define the result of a run, and their hash: a checkpoint is resumed only by the same run.

The schema marks each key that is left out (`NOT_IN_FINGERPRINT`): what changes only where or how fast the same result
is reached, how long the run goes on, or what it is called. Numbers of engines, their memory and their degrees are among
these: a sample draws from its own generator, so its tokens do not depend on them beyond floating-point ties. The loss
is a sum, so the size of a microbatch changes only the rounding. Under a constant learning rate `run.num_steps` is left
out too, so that a finished run may be continued; a decaying schedule spans the steps.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from rollpacker.config.keys import section_of
from rollpacker.config.schema import RunConfig
from rollpacker.config.sections.base import NotInFingerprint
from rollpacker.config.sections.data import RowSettings
from rollpacker.config.words import shortened
from rollpacker.paths import real_path

if TYPE_CHECKING:
    from pathlib import Path

    from rollpacker.config.hub_names import HubName
    from rollpacker.config.sections.data import PromptFile


def defining_values(config: RunConfig) -> dict[str, Any]:
    """Every value that defines the run's result, as plain data by dotted key; input paths are absolute."""
    tree = config.model_dump(mode="json", exclude=_left_out(RunConfig))
    tree["data"] = {name: value for name, value in tree["data"].items() if name not in RowSettings.model_fields}
    values = dict(_flatten(tree, ""))
    values["model.path"] = _place(config.model.path, config.model.hub_name)
    values["data.chat_template"] = _place(config.data.chat_template)
    values["data.solve_rates"] = _place(config.data.solve_rates)
    values["data.path"] = [_prompt_file(file) for file in config.data.files]
    if config.trainer.lr_schedule == "constant":
        del values["run.num_steps"]
    objective = config.objective
    values |= {f"trainer.{key}": getattr(objective, key) for key in _RESOLVED}
    if objective.mismatch == "none":
        for name in [name for name in values if name.startswith("trainer.mismatch")]:
            del values[name]
    return values


_RESOLVED = ("loss", "clip_ratio_low", "clip_ratio_high", "mismatch", "kl_estimator")
"""Keys whose null stands for a value."""


def _prompt_file(file: PromptFile) -> list[Any]:
    """Its place, its domain and, where there are any, the other settings that hold for it."""
    others = file.model_dump(mode="json", exclude_defaults=True, exclude={"path", "domain"})
    return [_place(file.path, file.hub_name), file.domain, *([others] if others else [])]


def _place(path: Path | None, name: HubName | None = None) -> str | None:
    """A name of the Hub has its commit, and may lie in another cache the next time."""
    return None if path is None else str(name or real_path(path))


def config_fingerprint(config: RunConfig) -> str:
    """Sixteen hexadecimal digits over `defining_values`, the same on every machine and in every process."""
    text = json.dumps(defining_values(config), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A key by which two configurations define different runs."""

    key: str
    here: str
    """Its value as text, like that below."""
    there: str


def differences(config: RunConfig, record: Mapping[str, Any] | None) -> list[Difference] | None:
    """List the keys in which a configuration and the record of a run define different results; null is as not set.

    Args:
        config: Of this run.
        record: The record of the other run, from `rollpacker.config.record.read_record`.

    Returns:
        None where the record is missing, or of a version with other keys.
    """
    try:
        recorded = RunConfig.model_validate(record)
    except ValidationError:
        return None
    here, there = defining_values(config), defining_values(recorded)
    for values in (here, there):
        if "run.num_steps" not in here or "run.num_steps" not in there:  # it counts only under some schedules
            values.pop("run.num_steps", None)
    return [
        Difference(key=key, here=_text(here, key), there=_text(there, key))
        for key in dict.fromkeys([*here, *there])
        if here.get(key) != there.get(key)
    ]


def _text(values: Mapping[str, Any], key: str) -> str:
    if key not in values:
        return "not set"
    value = values[key]
    if key == "data.path":
        return ", ".join(itertools.starmap(_described_file, value)) or "null"
    return _shortened_value(value)


def _described_file(place: str, domain: str | None, others: Mapping[str, Any] | None = None) -> str:
    """A prompt file as `_prompt_file` gives it: its place, and the settings that hold for it."""
    settings = {**({"domain": domain} if domain else {}), **(others or {})}
    said = ", ".join(f"{name} {_shortened_value(value)}" for name, value in settings.items())
    return f"{shortened(place)} ({said})" if said else shortened(place)


def _shortened_value(value: object) -> str:
    return shortened(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


@functools.cache
def _left_out(section: type[BaseModel]) -> dict[str, Any]:
    """The marked fields of a section and of those below it, as pydantic's `exclude` takes them."""
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        mark = next((each for each in field.metadata if isinstance(each, NotInFingerprint)), None)
        inner = section_of(field)
        if mark is not None and not mark.keys:
            found[name] = True
        elif below := dict.fromkeys(mark.keys if mark else (), True) | (_left_out(inner) if inner else {}):
            found[name] = below
    return found


def _flatten(tree: dict[str, Any], prefix: str) -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in tree.items():
        if isinstance(value, dict):
            leaves.extend(_flatten(value, f"{prefix}{name}."))
        else:
            leaves.append((f"{prefix}{name}", value))
    return leaves
