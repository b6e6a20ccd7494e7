"""What answers the turns of a policy: the `environment` section."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from rollpacker.config.sections.base import NOT_IN_FINGERPRINT, Count, Kind, Positive, PositiveSeconds, Section
from rollpacker.config.sections.losses import TURN_ADVANTAGES
from rollpacker.config.sections.modelled_environment import check_modelled_environment
from rollpacker.config.sections.reward_checks import NAMED_IN_PYTHON

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig


class EnvironmentSection(Section):
    """What answers the turns of a policy: a response is then a trajectory of several turns."""

    name: Literal["gym"]
    """`gym`: a Python class with GEM's or gymnasium's interface whose actions and observations are texts. It has
    reset(seed, options) -> (observation, info), of which either parameter may be missing, and step(action) ->
    (observation, reward, terminated, truncated, info). `options` are the other fields of the prompt's line."""
    env: str
    """The class: my_env.py:Maze, or package.module:Maze. The package has rollpacker.environments.walk_turns:WalkTurns
    and others beside it."""
    arguments: Annotated[dict[str, Any], Kind("a mapping of each parameter of the class to its value")] = Field(
        default_factory=dict
    )
    """Given to the class by name."""
    max_turns: Count = Field(20, ge=1)
    """That a policy writes in a trajectory. rollout.max_response_tokens counts all its tokens, those of the environment
    too; only what the policy wrote is trained."""
    max_open: Annotated[Count, NOT_IN_FINGERPRINT] = Field(64, ge=1, le=10_000)
    """Environments that are open at a time, each in a process of its own; other trajectories wait."""
    starts_per_minute: Annotated[Positive | None, NOT_IN_FINGERPRINT] = None
    """Resets that begin in a minute, at most, evenly spread: for a service that bears no more. null is no limit."""
    max_restarts: Annotated[Count, NOT_IN_FINGERPRINT] = Field(2, ge=0)
    """How often a trajectory begins again whose environment crashed or took too long. A prompt with too few others left
    for its group is then dropped, and counted."""
    reset_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 60.0
    """For a reset, with the start of the process where there is none."""
    turn_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 60.0
    """For a step."""
    episode_timeout_s: Annotated[PositiveSeconds, NOT_IN_FINGERPRINT] = 600.0
    """For all answers of a trajectory together; what engines take is not counted."""

    @field_validator("env")
    @classmethod
    def _names_a_class(cls, value: str) -> str:
        if not re.fullmatch(NAMED_IN_PYTHON, value):
            raise ValueError(
                f"environment.env={value} names nothing in Python.\n"
                "A class is named FILE.py:NAME or PACKAGE.MODULE:NAME.\nCorrect it."
            )
        return value


def check_environment(config: RunConfig) -> None:
    """Refuse what a run with environments, real or modelled, cannot have; raises `ValueError`."""
    check_modelled_environment(config)
    reward, environment = config.reward, config.environment
    if "environment" in reward.names and (environment is None or reward.names != ("environment",)):
        raise ValueError(
            "reward=environment without environment=gym.\n"
            "It is the sum of what environments give for the turns of a response.\n"
            "Choose environment=gym with environment.env, or another reward."
            if environment is None
            else f"reward.names has {', '.join(reward.names)}.\n"
            "In a run with environments they give every reward.\nLeave out reward.domains."
        )
    if config.trainer.advantage in TURN_ADVANTAGES and environment is None:
        raise ValueError(
            f"trainer.advantage={config.trainer.advantage} without an environment.\n"
            "It is made from the rewards of single turns, which only environments give.\n"
            "Choose environment=gym with environment.env, or trainer.advantage=group_std."
        )
    if environment is None:
        return
    for key, is_set, reason, remedy in (
        (
            f"reward.name={reward.name_of()}",
            reward.names != ("environment",),
            "A trajectory's reward is the sum of what its environment gives.",
            "Choose reward=environment.",
        ),
        (
            "backend.name=sim",
            config.backend.name == "sim",
            "A modelled run has no text for an environment to answer.",
            "Choose backend=ray, or model an environment by workload.environment (workload=agents).",
        ),
        (
            "system.stream=true",
            config.system.stream,
            "A batch whose groups stream has a size that is known before, and failing environments make it smaller.",
            "Set system.stream=false.",
        ),
        (
            "evaluation.when=fill",
            config.evaluation.when == "fill",
            "Held-out trajectories beside a round would take its places among the open environments.",
            "Set evaluation.when=alone.",
        ),
    ):
        if is_set:
            raise ValueError(f"environment.env={environment.env} with {key}.\n{reason}\n{remedy}")
