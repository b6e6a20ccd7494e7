"""What a decoder does next: one pass with prompt tokens in it, or a stretch of passes that only decode.

A stretch counts in token steps: in each, every sequence gets one token. Without drafts that is a pass; with them a pass
gains several tokens, and a token step takes its share of a pass (`sim.drafting`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rollpacker.sim.decoder import Generation
    from rollpacker.sim.drafting import Pace


@dataclass(slots=True)
class Stretch:
    """Token steps that only decode."""

    begins_at_s: float
    num_passes: int
    """Token steps."""
    first_s: float
    """Duration of the first one."""
    growth_s: float
    """How much longer each one is than the one before."""
    num_sequences: int
    pace: Pace

    def duration_s(self, num_passes: int) -> float:
        return num_passes * self.first_s + self.growth_s * (num_passes * (num_passes - 1) / 2)

    @property
    def ends_at_s(self) -> float:
        return self.begins_at_s + self.duration_s(self.num_passes)

    def cut(self, now: float) -> None:
        """End at the first boundary that is not before `now`."""
        self.num_passes = self.passes_begun(now)

    def passes_begun(self, now: float) -> int:
        """Token steps that began before `now`."""
        elapsed = max(now - self.begins_at_s, 0.0)
        linear = self.first_s - self.growth_s / 2
        root = (math.sqrt(linear * linear + 2 * self.growth_s * elapsed) - linear) / self.growth_s
        num_passes = min(max(math.ceil(root), 0), self.num_passes)
        while num_passes < self.num_passes and self.duration_s(num_passes) < elapsed:  # the root is rounded
            num_passes += 1
        while num_passes > 0 and self.duration_s(num_passes - 1) >= elapsed:
            num_passes -= 1
        return num_passes


@dataclass(slots=True)
class PrefillPass:
    """One pass with prompt tokens in it."""

    begins_at_s: float
    ends_at_s: float
    chunks: list[tuple[Generation, int]]
    """Sequences and how many of their tokens are prefilled."""

    def cut(self, now: float) -> None:
        """Drop the pass if it has not begun; one that has cannot be cut."""
        if now <= self.begins_at_s:
            self.ends_at_s, self.chunks = self.begins_at_s, []
