"""The environments of a modelled run: how many turns a trajectory has, and how long each is waited for."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from rollpacker.config.sections.base import LONGEST_S, Count, Number, Positive, PositiveSeconds, Seconds, Section

_FARTHEST_TURNS = 4
"""Standard deviations above the mean, at which the number of turns is cut."""


class ModelledEnvironmentSection(Section):
    """What answers each turn in a modelled run: a response is then a trajectory of several turns.

    The lengths of the workload are those of a turn, and each turn draws its own. On the engine of its last turn a
    trajectory finds what is left of it in the cache (not with `engine.vllm.prefix_caching=false`), elsewhere it is
    computed again. A reset takes no time and says nothing, since the prompt has the first observation. Environments do
    not slow each other down.
    """

    name: str
    """What people call it."""
    turns_mean: Number = Field(10.0, ge=1, le=1000)
    """Turns of a trajectory, after which its task has ended: normal, rounded, at least 1."""
    turns_std: Number = Field(0.0, ge=0, le=1000)
    """Standard deviation of the turns; 0 gives all trajectories equally many."""
    observation_tokens: Count = Field(100, ge=1)
    """Of each answer after which the policy goes on; they count towards rollout.max_response_tokens."""
    latency: Literal["normal", "log_normal"] = "normal"
    """Distribution of the time of a step: normal where what falls below 0 takes no time, so that the mean is above
    `latency_mean_s` where the deviation is large (10.8 s at 10 and 10); or log-normal, whose tail is longer."""
    latency_mean_s: PositiveSeconds = 1.0
    """Mean time that an environment takes for a step."""
    latency_std_s: Seconds = 0.0
    """Its standard deviation."""
    fail_slow_share: Number = Field(0.0, ge=0, le=1)
    """Share of the environments that stall once, in one of their turns."""
    fail_slow_s: Seconds = 210.0
    """What a stall takes beyond the step; the default is the ROLL-Flash paper's (Fig 10)."""
    fail_stop_share: Number = Field(0.0, ge=0, lt=1)
    """Share of the environments that never answer again from one of their turns on; an attempt that begins again draws
    anew."""
    pace: Literal["own", "batch"] = "own"
    """`own`: each trajectory goes on as soon as its environment has answered, as in real runs. `batch`: it waits until
    the environments of all have, a baseline to compare with (ROLL-Flash, Fig 9)."""
    max_open: Count = Field(10_000, ge=1, le=10_000)
    """As `environment.max_open`: environments that are open at a time."""
    starts_per_minute: Positive | None = None
    """As `environment.starts_per_minute`: resets that begin in a minute, at most. null is no limit."""
    max_restarts: Count = Field(2, ge=0)
    """As `environment.max_restarts`: how often a trajectory begins again whose environment took too long."""
    turn_timeout_s: PositiveSeconds = 3600.0
    """As `environment.turn_timeout_s`: longest time of a step. The default is ROLL's for an environment that hangs."""
    episode_timeout_s: PositiveSeconds = LONGEST_S
    """As `environment.episode_timeout_s`: for all answers of a trajectory together."""

    @model_validator(mode="after")
    def _steps_of_all_come_to_an_end(self) -> Self:
        if self.pace == "batch" and self.fail_stop_share:
            raise ValueError(
                f"workload.environment.pace=batch with workload.environment.fail_stop_share={self.fail_stop_share:g}."
                "\nAll trajectories would wait for the first environment that hangs, and reach their time limits with "
                "it.\nLeave out one of the two."
            )
        return self

    @property
    def max_turns(self) -> int:
        """The most that any trajectory has."""
        return math.ceil(self.turns_mean + _FARTHEST_TURNS * self.turns_std)

    @property
    def reset_timeout_s(self) -> float:
        """Of a reset, which takes no time."""
        return self.turn_timeout_s

    @property
    def opening_timeout_s(self) -> float:
        """For a reset to begin, which it does at once."""
        return min(self.turn_timeout_s, self.episode_timeout_s)
