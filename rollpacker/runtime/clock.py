"""Seconds since the run began, counted on over the attempts of a resumed run."""

from __future__ import annotations

import asyncio


class RunClock:
    """The running event loop's clock, started where the last checkpoint stopped; a virtual loop gives virtual time."""

    def __init__(self, already_elapsed_s: float = 0.0) -> None:
        self._time = asyncio.get_running_loop().time
        self._zero = self._time() - already_elapsed_s

    def now(self) -> float:
        return self._time() - self._zero
