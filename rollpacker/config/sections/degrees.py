"""What degrees of tensor parallelism a run may choose among, between rounds and in the midst of one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


def check_degrees(config: RunConfig) -> None:
    """Raise `ValueError` for degrees that the planner cannot choose among."""
    engine, degrees = config.engine, config.engine.degrees
    if not degrees:
        return
    text = f"engine.degrees={list(degrees)}"
    if any(larger != 2 * degree for degree, larger in itertools.pairwise(degrees)):
        raise ValueError(
            f"{text}.\nEach degree is twice the one before: the planner doubles and halves.\n"
            f"Set it to {[engine.tensor_parallel, 2 * engine.tensor_parallel]}, say."
        )
    if engine.tensor_parallel not in degrees:
        raise ValueError(
            f"{text} without engine.tensor_parallel={engine.tensor_parallel}.\n"
            "The run begins at engine.tensor_parallel.\nAdd it to engine.degrees, or change it."
        )
    if config.backend.name == "ray" and engine.name != "vllm" and degrees[-1] > 1:
        raise ValueError(
            f"{text} with engine.name={engine.name}.\n"
            f"An engine of {engine.name} works on one device; one of vllm may share the model among several.\n"
            "Leave out engine.degrees, or choose engine=vllm or backend=sim."
        )


def check_escalation(config: RunConfig) -> None:
    """Raise `ValueError` where the tail of a round cannot go on with larger engines."""
    system, engine = config.system, config.engine
    if not (system.escalate_tail and system.planner):
        return
    is_real = config.backend.name == "ray"
    for is_given, given, why, remedy in (
        (
            is_real and len(engine.degrees) in {0, 1},
            f"engine.degrees={list(engine.degrees)}",
            "There are no larger engines that could finish a round.",
            f"engine.degrees={[engine.tensor_parallel, 2 * engine.tensor_parallel]}, say",
        ),
        (
            is_real and engine.profile is None,
            "engine.profile=null",
            "What larger engines save has to be known before they take over in the midst of a round.",
            "engine.profile to a file that `rollpacker profile` wrote",
        ),
        (
            len(engine.degrees) != 1 and engine.switch == "restart",
            "engine.switch=restart",
            "The larger engines stand by with the round's weights, which takes a process.",
            "engine.switch=sleep",
        ),
        (
            system.dynamic_sampling,
            "system.dynamic_sampling=true",
            "It launches prompts until the batch is full, so nobody knows what is left of a round.",
            "system.dynamic_sampling=false",
        ),
        (
            config.elastic.is_on,
            f"elastic.max_workers={config.elastic.max_workers}",
            "What leaves the engines of the allocation would go to those of workers.",
            "elastic=none",
        ),
        (
            config.environment is not None or config.modelled_environment is not None,
            "an environment",
            "How long a trajectory goes on depends on turns that nobody has seen.",
            "environment=null",
        ),
        (
            config.evaluation.when == "fill",
            "evaluation.when=fill",
            "An evaluation that fills a round uses the engines that would make place.",
            "evaluation.when=alone",
        ),
    ):
        if is_given:
            raise ValueError(
                f"system.escalate_tail=true with {given}.\n{why}\nSet {remedy}, or system.escalate_tail=false."
            )
