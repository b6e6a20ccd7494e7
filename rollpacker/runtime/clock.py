"""Seconds since the run began, counted on over the attempts of a resumed run."""

from __future__ import annotations

import time


class RunClock:
    """A monotonic clock that starts where the last checkpoint stopped."""

    def __init__(self, already_elapsed_s: float = 0.0) -> None:
        self._zero = time.monotonic() - already_elapsed_s

    def now(self) -> float:
        return time.monotonic() - self._zero
