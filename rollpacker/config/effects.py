"""Keys of a configuration that have no effect, because another key turns off what they configure, or another one.

The schema marks the former (`OnlyWith`). Only values that differ from the default are reported, wherever they were set.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rollpacker.config.keys import section_of
from rollpacker.config.sections.base import OnlyWith
from rollpacker.config.sections.losses import LOSSES
from rollpacker.config.words import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

    from rollpacker.config.schema import RunConfig


def keys_without_effect(config: RunConfig) -> tuple[str, ...]:
    """A sentence for each key, in the schema's order; then for those whose effect is another than expected."""
    return (
        *_found(config, config, ""),
        *_beyond_the_end(config),
        *_unlike_its_paper(config),
        *_off_policy_updates(config),
    )


def off_policy_updates(config: RunConfig) -> str:
    """What a loss without a ratio makes of several updates per step, in words."""
    return (
        f"trainer.loss={config.trainer.loss} with trainer.num_minibatches={config.trainer.num_minibatches}: all "
        "updates of a step but the first learn from tokens of an older policy as if the current one had sampled them. "
        "trainer.loss=ppo has a ratio for it; trainer.num_minibatches=1 needs none."
    )


def _found(config: RunConfig, section: BaseModel, prefix: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if value is None or value == _default(field):
            continue
        conditions = [each for each in field.metadata if isinstance(each, OnlyWith)]
        missing = next((each for each in conditions if not _holds(config, each)), None)
        if missing is not None:
            changed = _changed(value, field, f"{prefix}{name}")
            yield f"{', '.join(changed)}: without effect: only a run with {missing} uses it."
        elif section_of(field) is not None:
            yield from _found(config, value, f"{prefix}{name}.")


def _changed(value: Any, field: FieldInfo, name: str) -> list[str]:
    """The key itself; of a section its keys that differ, or its `name`; or it."""
    if section_of(field) is None:
        return [f"{name}={shown(value)}"]
    if "name" in type(value).model_fields:
        return [f"{name}={value.name}"]
    inner = ((key, inner, getattr(value, key)) for key, inner in type(value).model_fields.items())
    changed = [
        each for key, field, own in inner if own != _default(field) for each in _changed(own, field, f"{name}.{key}")
    ]
    return changed or [name]


def _default(field: FieldInfo) -> Any:
    return field.get_default(call_default_factory=True)


def _holds(config: RunConfig, needed: OnlyWith) -> bool:
    value: Any = config
    for part in needed.key.split("."):
        value = getattr(value, part)
    if not needed.values:
        return bool(value)
    return any(str(each) in needed.values for each in (value if isinstance(value, tuple) else (value,)))


def _beyond_the_end(config: RunConfig) -> Iterator[str]:
    warmup, steps = config.trainer.warmup_steps, config.run.num_steps
    if warmup > steps > 0:
        yield (
            f"trainer.warmup_steps={warmup} with run.num_steps={steps}: the run ends before its learning rate is "
            f"trainer.learning_rate={config.trainer.learning_rate:g}."
        )


def _unlike_its_paper(config: RunConfig) -> Iterator[str]:
    given = config.trainer.loss_normalisation
    if config.trainer.loss == "gspo" and given != "sequence":
        yield (
            f"trainer.loss=gspo with trainer.loss_normalisation={given}: in its paper each response counts the same, "
            "which is trainer.loss_normalisation=sequence."
        )


def _off_policy_updates(config: RunConfig) -> Iterator[str]:
    loss = LOSSES.get(config.objective.loss or "")
    has_ratio = loss is None or loss.anchor != "none"  # one's own is asked when it is tried
    if not has_ratio and config.trainer.num_minibatches > 1 and config.backend.name != "sim":
        yield off_policy_updates(config)
