"""How long a decode pass takes, by engine and batch, learned from how far requests have come between two measurements.

A pass adds a token to each of n requests, and its time is near a straight line in n. One line is fitted to all engines
(least squares, the past forgotten by `KEPT` per observation), and each engine has a speed beside it:

    pass_s(engine, n) = (base + slope n) / speed(engine),    speed = mean over observations of line(n) / observed

So an engine that happens to have more requests is not taken for a faster one. Engines within `ALIKE` of the line have
speed 1: differences of contexts and moments of measurement would order equal engines by chance.

Invariants: base > 0, slope >= 0, speeds > 0.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, Self

from rollpacker.core.errors import InvariantViolated
from rollpacker.core.ids import EngineId

KEPT: Final = 0.98
"""Of an observation's weight at each later one: some fifty count."""
WEIGHT: Final = 0.3
"""Of the last observation in an engine's speed, as in `core.demand`."""
ALIKE: Final = 0.1
"""GPUs of two kinds differ by far more."""
SLOWEST: Final = 1e-9
"""Seconds of a pass at least, so that no line is 0."""


class PassTimes:
    """The line, and the engines' speeds."""

    def __init__(self) -> None:
        self._sums = [0.0] * 5
        """Weighted: of 1, n, n n, s and n s, with s seconds of a pass of n requests."""
        self._speeds: dict[EngineId, float] = {}

    @property
    def are_known(self) -> bool:
        """Whether anything was observed."""
        return self._sums[0] > 0

    @property
    def speeds(self) -> Mapping[EngineId, float]:
        """Of the engines that differ from the line."""
        return {engine: speed for engine, speed in self._speeds.items() if abs(speed - 1) > ALIKE}

    def observe(self, engine: EngineId, num_requests: int, pass_s: float) -> None:
        """Learn from passes of an engine that took so long on average, with so many requests."""
        terms = (1.0, num_requests, num_requests**2, pass_s, num_requests * pass_s)
        self._sums = [KEPT * before + term for before, term in zip(self._sums, terms, strict=True)]
        before = self._speeds.get(engine, 1.0)
        self._speeds[engine] = before + WEIGHT * (self._line(num_requests) / max(pass_s, SLOWEST) - before)

    def keep(self, engines: Collection[EngineId]) -> None:
        """Forget all other engines."""
        self._speeds = {engine: speed for engine, speed in self._speeds.items() if engine in engines}

    def pass_s(self, engine: EngineId, num_requests: int) -> float:
        """Predict the time of a pass; something must be known."""
        return self._line(num_requests) / self.speeds.get(engine, 1.0)

    def _line(self, num_requests: int) -> float:
        weight, sum_n, sum_nn, sum_s, sum_ns = self._sums
        mean_n, mean_s = sum_n / weight, sum_s / weight
        variance = sum_nn / weight - mean_n**2
        slope = (sum_ns / weight - mean_n * mean_s) / variance if variance > SLOWEST else 0.0
        slope = min(max(slope, 0.0), mean_s / max(mean_n, 1.0))
        return max(mean_s + slope * (num_requests - mean_n), SLOWEST)

    def check(self) -> None:
        """Re-derive the invariants.

        Raises:
            InvariantViolated: A time or a speed is not above 0.
        """
        if min(self._speeds.values(), default=1.0) <= 0 or (self.are_known and self._line(0) <= 0):
            raise InvariantViolated(f"An engine has no speed: {self.snapshot()}")

    def snapshot(self) -> dict[str, Any]:
        """Give the whole state as JSON data that shares nothing with the machine."""
        return {"sums": list(self._sums), "speeds": dict(self._speeds)}

    @classmethod
    def restore(cls, snapshot: dict[str, Any]) -> Self:
        """Rebuild what gave the snapshot."""
        times = cls()
        times._sums = list(snapshot["sums"])
        times._speeds = {EngineId(engine): speed for engine, speed in snapshot["speeds"].items()}
        return times
