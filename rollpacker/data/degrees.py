"""What a model cannot be divided into: degrees of parallelism that engines and trainers refuse.

Invariant: everything follows from a `ShapeSection`; whether GPUs suffice is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError

if TYPE_CHECKING:
    from rollpacker.config.sections.model import ShapeSection
    from rollpacker.config.sections.trainer import TrainerSection


def engine_degree_mistakes(
    degree: int, shape: ShapeSection, key: str = "engine.tensor_parallel"
) -> Iterator[ConfigError]:
    """What an engine's degree of tensor parallelism does not divide of the model."""
    heads, columns = shape.num_kv_heads, shape.expert_size or shape.intermediate_size
    divided = {"attention heads": shape.num_heads, "columns of an MLP": columns}
    yield from _division_mistakes(key, degree, divided, lambda each: _can_have(heads, each))
    if not _can_have(heads, degree):
        yield ConfigError(
            f"{key}={degree} neither divides the model's {heads} key-value heads nor is a multiple.",
            "Each GPU of an engine has whole key-value heads, or shares one with others.",
            f"Set {key}={heads}, or take another model.",
        )


def _can_have(num_kv_heads: int, degree: int) -> bool:
    """Whether each GPU of an engine has whole key-value heads, or shares one with others."""
    return not (num_kv_heads % degree and degree % num_kv_heads)


def trainer_degree_mistakes(trainer: TrainerSection, shape: ShapeSection) -> Iterator[ConfigError]:
    """What the trainer's degrees do not divide of the model."""
    heads = {"attention heads": shape.num_heads, "key-value heads": shape.num_kv_heads}
    columns = {"columns of an MLP": shape.intermediate_size}
    yield from _division_mistakes("trainer.tensor_parallel", trainer.tensor_parallel, heads | columns)
    yield from _division_mistakes("trainer.pipeline_parallel", trainer.pipeline_parallel, {"layers": shape.num_layers})


def _division_mistakes(
    key: str, degree: int, counts: Mapping[str, int], is_legal: Callable[[int], bool] = lambda _: True
) -> Iterator[ConfigError]:
    """Report the first number that a degree does not divide; one is enough, and what is suggested divides them all."""
    for what, number in counts.items():
        if number % degree:
            smaller = [each for each in range(1, degree) if is_legal(each) and _divides_all(each, counts)]
            yield ConfigError(
                f"{key}={degree} does not divide the model's {number} {what}.",
                f"Smaller degrees that this model can be divided by: {', '.join(map(str, smaller))}.",
                f"Set {key}={smaller[-1]}, or take another model.",
            )
            return


def _divides_all(degree: int, counts: Mapping[str, int]) -> bool:
    return not any(number % degree for number in counts.values())
