"""The repetitions of each point, and the point that they make."""

from __future__ import annotations

import numpy as np

from rollpacker.metrics.profiles import Point

_Repetition = tuple[float, float, float, float]
"""Items, tokens, items that ended, seconds."""


class Points:
    """Collects what the probes measure."""

    def __init__(self) -> None:
        self._repetitions: dict[tuple[object, ...], list[_Repetition]] = {}

    def note(
        self,
        key: tuple[object, ...],
        num_items: float,
        num_tokens: float,
        seconds: float,
        *,
        num_ended: float = 0.0,
    ) -> None:
        """Add one repetition of the point `key`, which begins with its measurement."""
        self._repetitions.setdefault(key, []).append((num_items, num_tokens, num_ended, max(seconds, 0.0)))

    def take(self, tensor_parallel: int) -> list[Point]:
        """Return a point per key, in the order of their first repetitions, and start empty again."""
        points = [self._point(key, tensor_parallel) for key in self._repetitions]
        self._repetitions = {}
        return points

    def _point(self, key: tuple[object, ...], tensor_parallel: int) -> Point:
        repetitions = np.array(self._repetitions[key])
        num_items, num_tokens, num_ended, _ = repetitions.mean(axis=0).tolist()
        low, middle, high = np.quantile(repetitions[:, 3], (0.1, 0.5, 0.9)).tolist()
        return Point(
            measurement=str(key[0]),
            tensor_parallel=tensor_parallel,
            num_items=num_items,
            num_tokens=num_tokens,
            seconds=middle,
            seconds_low=low,
            seconds_high=high,
            num_repeats=len(repetitions),
            num_ended=num_ended,
        )
