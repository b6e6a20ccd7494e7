"""Forms fitted to a measured profile: what passes, calls and steps take, with straight lines between measured points.

Invariant: a cost never falls when the work grows, and at every measured point it is off by at most the share that
`residual` states. The forms are few, because a decoder that jumps over many passes needs them closed:

    decode    base(n) + kv_read_s * cached tokens     base is piecewise linear over the measured batch sizes
    ending    ending_s for each sequence that ends    what a batch of the data took beyond its passes
    prefill   a + b * prompts + c * tokens + d * attention, where attention is the sum of end^2 - begin^2
    others    a + b * items + c * tokens

All are least squares of relative errors, with coefficients that are not negative; where noise says that a larger batch
takes less time, the two sizes share their mean (isotonic regression). Outside what was
measured the lines go on: below the smallest batch as at the smallest, above the largest at the slope between the last
two sizes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rollpacker.core.errors import ConfigError
from rollpacker.core.round_time_model import interpolated

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from rollpacker.metrics.profiles import Point, Profile

    Floats = npt.NDArray[np.float64]

_SAME_SIZE = 1.3
"""Batches below this multiple of the smallest of them were meant to be equal; some sequences had ended early. Probed
sizes are a factor of 2 apart."""

_LEAST_KV_READ_S = 1e-15
"""Where cached tokens cost nothing that can be measured: the decoder solves a quadratic for the pass in which an order
arrives, and divides by it."""

_TINY_S = 1e-6
"""Stands for a time of zero where errors are relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """Coefficients and how well they fit."""

    coefficients: tuple[float, ...]
    """Of 1, and of each feature."""
    residual: float
    """Largest share by which it is off at a measured point."""

    def __call__(self, *features: float) -> float:
        fixed, *slopes = self.coefficients
        return fixed + sum(slope * feature for slope, feature in zip(slopes, features, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeCost:
    """The time of a pass that adds a token to each of some sequences."""

    sizes: tuple[float, ...]
    """Measured batch sizes, ascending."""
    base_s: tuple[float, ...]
    """At these sizes, not falling."""
    kv_read_s: float
    """Per cached token."""
    residual: float
    """Largest share by which it is off at a measured point."""

    def base(self, num_seqs: float) -> float:
        """What a pass takes beside reading cached tokens."""
        return interpolated(num_seqs, self.sizes, self.base_s)

    def __call__(self, num_seqs: float, num_cached: float) -> float:
        return self.base(num_seqs) + self.kv_read_s * num_cached


def fit_decode(points: Sequence[Point]) -> DecodeCost:
    """Fit passes: a time per batch size, and one per cached token."""
    from scipy.optimize import isotonic_regression

    num_seqs = np.array([point.num_items for point in points])
    seconds = _seconds(points)
    sizes = _sizes(num_seqs)
    features = np.column_stack([_hats(num_seqs, sizes), [point.num_tokens for point in points]])
    *_, kv_read_s = _nonnegative_fit(features, seconds)
    # a time per size, whatever is left once cached tokens are read
    rest = seconds - kv_read_s * features[:, -1]
    base_s, *_ = np.linalg.lstsq(features[:, :-1] / seconds[:, None], rest / seconds, rcond=None)
    cost = DecodeCost(
        sizes=tuple(map(float, sizes)),
        base_s=tuple(map(float, isotonic_regression(np.maximum(base_s, 0.0)).x)),
        kv_read_s=max(float(kv_read_s), _LEAST_KV_READ_S),
        residual=0.0,
    )
    fitted = np.array([cost(point.num_items, point.num_tokens) for point in points])
    return DecodeCost(sizes=cost.sizes, base_s=cost.base_s, kv_read_s=cost.kv_read_s, residual=_off(fitted, seconds))


def fit_ending(points: Sequence[Point], decode: DecodeCost) -> float:
    """Fit what a pass takes longer for each sequence that ends in it, by least squares."""
    num_ended = np.array([point.num_ended for point in points])
    beyond_s = np.array([point.seconds - decode(point.num_items, point.num_tokens) for point in points])
    squares = float(num_ended @ num_ended)
    return max(float(num_ended @ beyond_s) / squares, 0.0) if squares else 0.0


def fit_prefill(points: Sequence[Point]) -> LinearCost:
    """Fit passes over prompts of equal length: by prompts, tokens and attention."""
    return _fit([(p.num_items, p.num_tokens, p.num_tokens**2 / p.num_items) for p in points], points)


def fit_items(points: Sequence[Point]) -> LinearCost:
    """Fit a time by items."""
    return _fit([(point.num_items,) for point in points], points)


def fit_items_and_tokens(points: Sequence[Point]) -> LinearCost:
    """Fit a time by items and tokens."""
    return _fit([(point.num_items, point.num_tokens) for point in points], points)


def _fit(features: Sequence[tuple[float, ...]], points: Sequence[Point]) -> LinearCost:
    matrix = np.column_stack([np.ones(len(points)), np.array(features)])
    seconds = _seconds(points)
    coefficients = _nonnegative_fit(matrix, seconds)
    return LinearCost(coefficients=tuple(map(float, coefficients)), residual=_off(matrix @ coefficients, seconds))


def _nonnegative_fit(features: Floats, seconds: Floats) -> Floats:
    """Least squares of relative errors, with coefficients that are not negative."""
    from scipy.optimize import nnls

    matrix = features / seconds[:, None]
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(matrix / scale, np.ones(len(seconds)))
    return np.asarray(solution / scale, dtype=np.float64)


def _sizes(num_seqs: Floats) -> list[float]:
    """The batch sizes that were meant, each as the mean of what came of it."""
    groups: list[list[float]] = []
    for value in np.sort(num_seqs):
        if groups and value < groups[-1][0] * _SAME_SIZE:
            groups[-1].append(float(value))
        else:
            groups.append([float(value)])
    return [float(np.mean(group)) for group in groups]


def _hats(num_seqs: Floats, sizes: Sequence[float]) -> Floats:
    """How much each size counts at each point: the interpolation of `DecodeCost.base` as a matrix.

    Above the largest size `base` goes on at its last slope, but the sizes are means of what came of them, so a point
    may lie a little above.
    """
    if len(sizes) == 1:
        return np.ones((len(num_seqs), 1))
    index = np.clip(np.searchsorted(sizes, num_seqs), 1, len(sizes) - 1)
    lower, upper = np.take(sizes, index - 1), np.take(sizes, index)
    share = np.maximum((num_seqs - lower) / (upper - lower), 0.0)
    rows = np.arange(len(num_seqs))
    hats = np.zeros((len(num_seqs), len(sizes)))
    hats[rows, index - 1], hats[rows, index] = 1 - share, share
    return hats


def _seconds(points: Sequence[Point]) -> Floats:
    seconds: Floats = np.array([max(point.seconds, _TINY_S) for point in points])
    return seconds


def _off(fitted: Floats, seconds: Floats) -> float:
    return float(np.abs(fitted / seconds - 1).max())


def check_model(key: str, path: Path, profile: Profile, wanted: Mapping[str, Any], dtype: str) -> None:
    """Refuse the profile of another model than one of these sizes; raises `ConfigError` that names the key."""
    measured = json.loads(profile.facts.model)
    differing = [f"{key} {measured.get(key)}, not {size}" for key, size in wanted.items() if measured.get(key) != size]
    if profile.facts.dtype != dtype:
        differing.append(f"{profile.facts.dtype}, not {dtype}")
    if differing:
        raise ConfigError(
            f"{key}={path} is of another model: {', '.join(differing)}.",
            "A profile holds for the model that was measured, in the same number format.",
            "Set model.path and model.dtype as they were measured, or measure this model.",
        )
