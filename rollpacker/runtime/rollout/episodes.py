"""What trajectories and their environments had of each other: the source of what the tables say of environments.

An episode is what a trajectory has from its first reset to its end, over all environments that failed in between.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rollpacker.core.ids import RequestId
from rollpacker.protocols.rollout import Turn

ENVIRONMENT_ACTOR: Final = "environment"
"""Who acts, in the `intervals` table; its role, too."""


@dataclass(slots=True, kw_only=True)
class Episode:
    """A trajectory at its environments."""

    turns: list[Turn] = field(default_factory=list)
    """Those that its environment has answered, since it began again last."""
    waited_s: float = 0.0
    """For its environments, those that failed too."""
    num_restarts: int = 0
    """How often it began again, because its environment failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStay:
    """A stretch of time in which a trajectory waited for its environment."""

    request: RequestId
    activity: str
    """`start` of a process, until a reset begins; `reset`, `step`, or how it ended without an answer, such as
    `environment_timeout`, or `stopped`."""
    began_at_s: float
    ended_at_s: float
