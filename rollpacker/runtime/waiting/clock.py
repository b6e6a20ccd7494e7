"""Seconds of work since the run began, counted on over the attempts of a resumed run.

Invariant: when the first step of an attempt begins, the clock shows the time of the checkpoint. Starting workers,
loading a checkpoint and sending the engines their first weights take no time of the run, however often it is resumed.
On a loop whose time can be set, the loop's time becomes the run's: sums of times round alike in every attempt, and a
modelled run that is resumed gives the bytes of an uninterrupted one. It lacks only the time and the rows of the
checkpoint that it resumed from, if the uninterrupted one wrote it too: they come after what a checkpoint holds.
"""

from __future__ import annotations

import asyncio
from typing import Protocol, runtime_checkable


@runtime_checkable
class SettableTime(Protocol):
    """An event loop in virtual time."""

    def set_time(self, time_s: float) -> None:
        """Set the time; no timer may be pending."""


class RunClock:
    """The running event loop's clock, shifted; a virtual loop gives virtual time."""

    def __init__(self, already_elapsed_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._already_elapsed_s = already_elapsed_s
        self._zero = self._loop.time() - already_elapsed_s

    def start(self) -> None:
        """Begin with the first step, now."""
        if isinstance(self._loop, SettableTime):
            self._loop.set_time(self._already_elapsed_s)
        self._zero = self._loop.time() - self._already_elapsed_s

    def now(self) -> float:
        return self._loop.time() - self._zero
