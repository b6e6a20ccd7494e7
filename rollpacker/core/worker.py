"""One life of a rollout worker, as far as it is known: its stage, its end, and what its engines have.

`core.fleet` says what moves it from one stage to the next.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from rollpacker.core.commands import SetTimer
from rollpacker.core.ids import EngineId, WorkerId, member_of


class Stage(StrEnum):
    """How far a worker is."""

    STARTING = "starting"
    CATCHING_UP = "catching_up"
    SERVING = "serving"
    DRAINING = "draining"
    LEAVING = "leaving"


@dataclass(slots=True)
class Worker:
    """One life of an element."""

    name: WorkerId
    num_engines: int
    stage: Stage
    ends_at_s: float | None
    """As far as it is known."""
    kv_tokens: dict[EngineId, int] = field(default_factory=dict)
    """Of each engine that has started, the capacity of its KV cache."""
    updated: list[EngineId] = field(default_factory=list)
    """Its engines that hold the newest policy."""
    fetched_again: list[EngineId] = field(default_factory=list)
    """Its engines that did not get the newest policy at first."""
    fetches_since_s: float | None = None
    """Since when it fetches a policy, that one or one before it; None while it holds the newest, or there is none."""
    last_fetch_s: float = 0.0
    """That its engines took to hold the newest policy again; 0 before the first."""
    is_late: bool = False
    """It has fetched for so long that nothing is held back for it any more."""

    @property
    def engines(self) -> tuple[EngineId, ...]:
        """Their names, in order."""
        return tuple(member_of(self.name, number) for number in range(self.num_engines))

    @property
    def is_expected(self) -> bool:
        """It is about to serve."""
        return self.stage is Stage.CATCHING_UP and not self.is_late

    def timer(self, purpose: str, at_s: float) -> SetTimer:
        """Set one of its own."""
        return SetTimer(timer=f"{self.name} {purpose}", at_s=at_s)
