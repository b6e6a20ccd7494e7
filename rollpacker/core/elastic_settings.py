"""What the machines of rollout workers are told before a run: `core.fleet`, `core.seeding` and `core.balance`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from rollpacker.core.bounds import require


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedingSettings:
    """How long the trainer's own GPUs roll out before all of their engines are lent to it (`core.seeding`)."""

    fixed_s: float | None = None
    """So long in every round; None learns it."""
    gain: Fraction = Fraction(3)
    """A step corrects the time by this part of the difference of two waits: the trainer's and the workers'. 3 is
    PolyRL's."""
    remembers: bool = True
    """The time of each number of workers; False goes on from the last one's whenever that number changes."""
    reclaim_after_s: float = 15.0
    """Lent engines are taken back when no worker, or too few, have served for so long."""

    def __post_init__(self) -> None:
        require(self.fixed_s is None or 0 <= self.fixed_s < math.inf, f"fixed_s={self.fixed_s} is below 0")
        require(self.gain >= 1, f"gain={self.gain} is below 1: it would swing further each step")
        require(0 <= self.reclaim_after_s < math.inf, f"reclaim_after_s={self.reclaim_after_s:g} is below 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceSettings:
    """Which engine gets how much, in a run with rollout workers (`core.load_order`, `core.balance`)."""

    num_slots: int
    """Requests that an engine decodes at a time."""
    max_pending: int
    """So many more an engine gets, to start when one ends; the rest waits for room on any."""
    max_moves: int = 0
    """By choice, of a request in a round; 0: nothing moves but what must."""
    every_s: float = 5.0
    """Between two looks at what could move."""
    gain_s: float = 5.0
    """By so much the later of two engines has to end earlier."""
    max_response_tokens: int = 0
    """Expected of a response that is longer than all recent ones."""

    def __post_init__(self) -> None:
        require(self.num_slots >= 1, f"num_slots={self.num_slots} is below 1")
        for name in ("max_pending", "max_moves", "max_response_tokens", "gain_s"):
            require(0 <= getattr(self, name) < math.inf, f"{name}={getattr(self, name):g} is below 0")
        require(0 < self.every_s < math.inf, f"every_s={self.every_s:g} is not above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ElasticSettings:
    """When rollout workers come into a run's fleet and leave it (`core.fleet`)."""

    min_workers: int
    max_workers: int
    """As many as may start, catch up or serve."""
    start_s: float
    """For an engine of a worker to start."""
    fetch_s: float
    """For it to fetch a policy."""
    grace_s: float
    """For a worker to leave when it is told to."""
    least_stay_s: float
    """One that leaves sooner than this, or than `drain_lead_s`, is not started."""
    drain_lead_s: float
    """So long before a known end nothing more is launched on a worker."""
    drain_margin_s: float
    """So long before it what still runs there is evicted."""
    patience_s: float = 15.0
    """What is to be generated waits so long, at most, for one that fetches a policy, unless its last fetch took long.
    A round that holds its share back for so long loses little."""
    overlaps: bool = True
    """The trainer trains while the rollout goes on: on a round's first groups, or on a batch of before."""
    is_apart: bool = False
    """It has GPUs of its own, so that the engines on its allocation generate meanwhile."""
    seeding: SeedingSettings | None = None
    """None: engines on the trainer's GPUs are not lent for the workers' sake; one that cannot be taken back must not
    be."""
    balance: BalanceSettings | None = None
    """None: every request is launched at once."""

    def __post_init__(self) -> None:
        are_bounds = 0 <= self.min_workers <= self.max_workers and self.max_workers >= 1
        require(are_bounds, f"not 0 <= min_workers={self.min_workers} <= max_workers={self.max_workers}")
        for name in ("start_s", "fetch_s", "grace_s", "least_stay_s", "patience_s"):
            require(0 <= getattr(self, name) < math.inf, f"{name}={getattr(self, name):g} is below 0")
        lead, margin = self.drain_lead_s, self.drain_margin_s
        require(0 <= margin <= lead < math.inf, f"not 0 <= drain_margin_s={margin:g} <= drain_lead_s={lead:g}")
