"""What a model cannot be divided into: degrees of parallelism that engines and trainers refuse.

Invariant: everything follows from a `ShapeSection`; whether GPUs suffice is not looked at.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
    divided = ("attention heads", shape.num_heads), ("columns of an MLP", columns)
    if mistakes := list(_division_mistakes((key, degree, what, number) for what, number in divided)):
        yield mistakes[0]
    if heads % degree and degree % heads:
        yield ConfigError(
            f"{key}={degree} neither divides the model's {heads} key-value heads nor is a multiple.",
            "Each GPU of an engine has whole key-value heads, or shares one with others.",
            f"Set {key}={heads}, or take another model.",
        )


def trainer_degree_mistakes(trainer: TrainerSection, shape: ShapeSection) -> Iterator[ConfigError]:
    """What the trainer's degrees do not divide of the model."""
    yield from _division_mistakes(
        (
            ("trainer.tensor_parallel", trainer.tensor_parallel, "attention heads", shape.num_heads),
            ("trainer.tensor_parallel", trainer.tensor_parallel, "key-value heads", shape.num_kv_heads),
            ("trainer.tensor_parallel", trainer.tensor_parallel, "columns of an MLP", shape.intermediate_size),
            ("trainer.pipeline_parallel", trainer.pipeline_parallel, "layers", shape.num_layers),
        )
    )


def _division_mistakes(divisions: Iterable[tuple[str, int, str, int]]) -> Iterator[ConfigError]:
    """Report the first degree that does not divide what it should; one is enough."""
    for key, degree, what, number in divisions:
        if number % degree:
            legal = [divisor for divisor in range(1, number + 1) if number % divisor == 0 and divisor <= 2 * degree]
            yield ConfigError(
                f"{key}={degree} does not divide the model's {number} {what}.",
                f"Of the degrees up to {2 * degree}, {', '.join(map(str, legal))} do.",
                f"Set {key}={max(divisor for divisor in legal if divisor < degree)}, or take another model.",
            )
            return
