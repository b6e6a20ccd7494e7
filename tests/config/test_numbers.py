"""No number of a configuration overflows further in: every key that takes one has limits on both sides.

The cases are the schema's own keys, so that a new one is among them.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from rollpacker.config.compose import compose
from rollpacker.config.launching import LauncherSettings
from rollpacker.config.schema import RunConfig
from rollpacker.config.score_schema import ScoreConfig
from rollpacker.core.errors import ConfigError

BASE = ["model.path=m", "data.path=p.jsonl", "run.dir=r"]
NO_NUMBERS = (10**30, 2**63, -(2**63), 1e308, -1e308, math.nan, math.inf, -math.inf, True, False)
NO_FLAGS = (0, 1, 2, 0.0, 1.0, 10**30, math.nan)
ANY_ARGUMENT = ("template_arguments", "arguments")
"""Somebody else's names and values."""


def _fields(schema: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in schema.model_fields.items():
        parts = getattr(field.annotation, "__args__", (field.annotation,))
        sections = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        if sections:
            yield from _fields(sections[0], f"{prefix}{name}.")
        elif name not in ANY_ARGUMENT and "coerce_numbers_to_str" not in str(field):
            yield f"{prefix}{name}", field


FIELDS = dict([*_fields(RunConfig), *_fields(ScoreConfig, "score."), *_fields(LauncherSettings, "hydra.launcher.")])
FLAGS = [name for name, field in FIELDS.items() if re.search(r"\bbool\b", str(field.annotation))]


@functools.cache
def _adapter(name: str) -> TypeAdapter[Any]:
    field = FIELDS[name]
    return TypeAdapter(Annotated[field.annotation, field], config={"allow_inf_nan": False})


def _accepts(name: str, value: object) -> bool:
    try:
        _adapter(name).validate_python(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in FLAGS])
def test_a_key_takes_no_number_that_would_overflow_and_no_boolean_for_a_number(name: str) -> None:
    for number in NO_NUMBERS:
        for value in (number, [number], [number, number], {"name": number}, {0: number}, {number: 1}):
            assert not _accepts(name, value), value


@pytest.mark.parametrize("name", FLAGS)
def test_a_key_that_is_true_or_false_takes_no_number(name: str) -> None:
    assert all(_accepts(name, value) for value in (True, False))
    assert not [value for value in NO_FLAGS if _accepts(name, value)]


@pytest.mark.parametrize(
    ("words", "problem", "allowed"),
    [
        (["run.seed=99999999999999999999999"], "run.seed=99999999999999999999999 is out of bounds.", "4,294,967,295"),
        (["run.num_steps=true"], "run.num_steps=true is not legal.", "an integer, at least 0"),
        (["run.num_steps=99999999999999999999"], "run.num_steps=99999999999999999999 is out of", "1,000,000,000"),
        (["rollout.temperature=1e-40"], "rollout.temperature=1e-40 is out of bounds.", "at least 0.01"),
        (["trainer.learning_rate=1e10"], "trainer.learning_rate=10000000000.0 is out of bounds.", "at most 1."),
        (["trainer.weight_decay=nan"], "trainer.weight_decay=nan is out of bounds.", "at most 10"),
        (["tracker.wandb=1"], "tracker.wandb=1 is not legal.", "true or false"),
        (["+data.domain_weights.math=1e-320"], "data.domain_weights.math=1e-320 is out of bounds: ", "above 0"),
    ],
)
def test_a_number_that_no_run_could_use_is_refused_with_what_is_allowed(
    words: list[str], problem: str, allowed: str
) -> None:
    with pytest.raises(ConfigError) as error:
        compose([*BASE, *words])
    assert error.value.problem.startswith(problem)
    assert allowed in error.value.allowed
