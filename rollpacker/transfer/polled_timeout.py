"""How long a party of a transfer waits for another one, without the time in which it was stopped.

While a process is stopped, by Ctrl-Z or Slurm, nothing can arrive, and a job's other processes are most likely stopped,
too. So a wait looks at what it waits for again and again, and a stop costs no more than a share of its timeout.
"""

from __future__ import annotations

import time

NUM_LOOKS = 20
"""Calls of `is_over` within a timeout, at least."""

_LEAST_S = 0.001
"""Shortest wait: torch takes 0 for no limit."""


class PolledTimeout:
    """A timeout that does not count the time in which the process was stopped.

    `is_over` is called every `timeout_s / NUM_LOOKS` or more often: of a longer gap only so much counts.
    """

    def __init__(self, timeout_s: float) -> None:
        self._left_s = timeout_s
        self._look_s = timeout_s / NUM_LOOKS
        self._looked_at_s = time.monotonic()

    def is_over(self) -> bool:
        """Count the time since the last call, and return whether none is left."""
        now, before = time.monotonic(), self._looked_at_s
        self._left_s -= min(now - before, self._look_s)
        self._looked_at_s = now
        return self._left_s <= 0

    @property
    def next_look_s(self) -> float:
        """How long a wait may last before it looks again."""
        return max(_LEAST_S, min(self._left_s, self._look_s))
