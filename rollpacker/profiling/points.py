"""The repetitions of each point, and the point that they make."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rollpacker.metrics.profiles import Point


@dataclass(slots=True, kw_only=True)
class _Samples:
    """Repetitions of one point."""

    measurement: str
    num_bytes: int | None
    num_items: list[float] = field(default_factory=list)
    num_tokens: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    num_ended: list[float] = field(default_factory=list)

    def to_point(self, tensor_parallel: int) -> Point:
        low, middle, high = (float(np.quantile(self.seconds, q)) for q in (0.1, 0.5, 0.9))
        return Point(
            measurement=self.measurement,
            tensor_parallel=tensor_parallel,
            num_items=float(np.mean(self.num_items)),
            num_tokens=float(np.mean(self.num_tokens)),
            seconds=middle,
            seconds_low=low,
            seconds_high=high,
            num_repeats=len(self.seconds),
            num_ended=float(np.mean(self.num_ended)),
            num_bytes=self.num_bytes,
        )


class Points:
    """Collects what the probes measure."""

    def __init__(self) -> None:
        self._samples: dict[tuple[object, ...], _Samples] = {}

    def note(
        self,
        key: tuple[object, ...],
        num_items: float,
        num_tokens: float,
        seconds: float,
        *,
        num_ended: float = 0.0,
        num_bytes: int | None = None,
    ) -> None:
        """Add one repetition of the point `key`, which begins with its measurement."""
        samples = self._samples.setdefault(key, _Samples(measurement=str(key[0]), num_bytes=num_bytes))
        samples.num_ended.append(num_ended)
        samples.num_items.append(num_items)
        samples.num_tokens.append(num_tokens)
        samples.seconds.append(max(seconds, 0.0))

    def take(self, tensor_parallel: int) -> list[Point]:
        """Return a point per key, in the order of their first repetitions, and start empty again."""
        points = [samples.to_point(tensor_parallel) for samples in self._samples.values()]
        self._samples = {}
        return points
