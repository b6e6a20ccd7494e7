"""Which parameters bring all predictions closest to the paper's numbers: robust least squares on logarithms.

A residual is log(predicted / paper), so 10 % too much and 10 % too little weigh the same whatever the unit. Residuals
beyond `ROBUST_FROM` count linearly (Huber, 1964): a number that the model cannot explain does not bend all others. The
parameters are positive and stepped in logarithms within their bounds, by SciPy's trust-region reflective method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

ROBUST_FROM = 0.15

_DIFFERENCE = 0.1
"""Step of a derivative, in logarithms; larger than what the lumpiness of a few rounds hides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One number of the hardware that is fitted."""

    key: str
    """In the group `hardware`."""
    start: float
    low: float
    high: float
    is_whole: bool = False

    def value(self, log: float) -> float:
        """The parameter's value, within its bounds."""
        value = min(max(math.exp(log), self.low), self.high)
        return round(value) if self.is_whole else float(f"{value:.4g}")

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the logarithm; the start lies between them."""
        return math.log(self.low), math.log(self.high)

    @property
    def first_log(self) -> float:
        """The start's logarithm, within the bounds."""
        return math.log(min(max(self.start, self.low), self.high))


PARAMETERS: Sequence[Parameter] = (
    Parameter(key="rollout_start_s", start=48.19, low=0.1, high=60.0),
    Parameter(key="step_overhead_s", start=0.0034, low=5e-4, high=0.05),
    Parameter(key="sequence_overhead_s", start=5.276e-5, low=1e-6, high=2e-3),
    Parameter(key="training_efficiency", start=0.5586, low=0.2, high=0.6),
    Parameter(key="training_sequence_overhead_s", start=0.1723, low=1e-3, high=1.0),
    Parameter(key="weight_sync_efficiency", start=0.03013, low=0.005, high=0.9),
    Parameter(key="reward_cores_per_node", start=16, low=2, high=256, is_whole=True),
    Parameter(key="rule_time_s", start=0.0161, low=1e-3, high=0.2),
)
"""Of one node type, for all models, systems and exhibits alike. Bounds are what such hardware may plausibly have.
Starts are where earlier rounds ended: a fit of no round gives `conf/hardware/h800.yaml` again, one of more goes on."""

Values = Mapping[str, float]
Evaluate = Callable[[Sequence[Values]], Sequence[Sequence[float]]]
"""Gives the residuals of each set of values; several are asked for at once, so that they can be run side by side."""


def fit(evaluate: Evaluate, parameters: Sequence[Parameter], num_rounds: int) -> tuple[Values, Sequence[float]]:
    """Fit; gives the best values that were tried, and their residuals. A round is a derivative and a step."""
    from scipy.optimize import least_squares

    tried: dict[tuple[float, ...], Sequence[float]] = {}

    def residuals_of(all_logs: Sequence[Floats]) -> Floats:
        """The residuals of each point; what was run before is not run again."""
        keys = [
            tuple(parameter.value(log) for parameter, log in zip(parameters, logs, strict=True)) for logs in all_logs
        ]
        missing = [key for key in dict.fromkeys(keys) if key not in tried]
        if missing:
            answers = evaluate([_named(parameters, key) for key in missing])
            tried.update(zip(missing, answers, strict=True))
        return np.array([tried[key] for key in keys])

    def slopes(logs: Floats) -> Floats:
        nudges = np.array([_nudge(parameter, log) for parameter, log in zip(parameters, logs, strict=True)])
        middle, *others = residuals_of([logs, *(logs + each for each in np.diag(nudges))])
        return np.asarray((np.array(others) - middle).T / nudges, dtype=np.float64)

    start = np.array([parameter.first_log for parameter in parameters])
    residuals_of([start])
    if num_rounds:
        low, high = zip(*(parameter.bounds for parameter in parameters), strict=True)
        least_squares(
            lambda logs: residuals_of([logs])[0],
            start,
            jac=slopes,
            bounds=(low, high),
            loss="huber",
            f_scale=ROBUST_FROM,
            max_nfev=num_rounds + 1,
        )
    best = min(tried, key=lambda key: loss(tried[key]))
    return _named(parameters, best), tried[best]


def loss(residuals: Sequence[float]) -> float:
    """Huber's loss, summed."""
    sizes = np.abs(residuals)
    return float(np.where(sizes < ROBUST_FROM, sizes**2 / 2, ROBUST_FROM * (sizes - ROBUST_FROM / 2)).sum())


def _nudge(parameter: Parameter, log: float) -> float:
    """By how much a parameter's logarithm is moved for its derivative: inwards, and a whole number by one at least."""
    value = parameter.value(log)
    if parameter.is_whole:
        step = max(1, round(value * _DIFFERENCE))
        return math.log((value + step) / value) if value + step <= parameter.high else math.log((value - step) / value)
    return _DIFFERENCE if log + _DIFFERENCE < parameter.bounds[1] else -_DIFFERENCE


def _named(parameters: Sequence[Parameter], values: Sequence[float]) -> Values:
    return {parameter.key: value for parameter, value in zip(parameters, values, strict=True)}
