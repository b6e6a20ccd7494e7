"""Damped least squares on logarithms: which parameters bring all predictions closest to the paper's numbers.

A residual is log(predicted / paper), so 10 % too much and 10 % too little weigh the same whatever the unit. Residuals
beyond `ROBUST_FROM` count linearly (Huber, 1964): a number that the model cannot explain does not bend all others. The
parameters are positive and stepped in logarithms; derivatives are differences (Levenberg, 1944; Marquardt, 1963).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

ROBUST_FROM = 0.15

_DIFFERENCE = 0.1
"""Step of a derivative, in logarithms; larger than what the lumpiness of a few rounds hides."""

_DAMPING = 0.05


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


PARAMETERS: Sequence[Parameter] = (
    Parameter(key="rollout_start_s", start=44.83, low=0.1, high=60.0),
    Parameter(key="step_overhead_s", start=0.002892, low=5e-4, high=0.05),
    Parameter(key="sequence_overhead_s", start=9.461e-5, low=1e-6, high=2e-3),
    Parameter(key="training_efficiency", start=0.5321, low=0.2, high=0.6),
    Parameter(key="training_sequence_overhead_s", start=0.163, low=1e-3, high=1.0),
    Parameter(key="weight_sync_efficiency", start=0.02988, low=0.005, high=0.9),
    Parameter(key="reward_cores_per_node", start=16, low=2, high=256, is_whole=True),
    Parameter(key="rule_time_s", start=0.01598, low=1e-3, high=0.2),
)
"""Of one node type, for all models, systems and exhibits alike. Bounds are what such hardware may plausibly have.
Starts are where earlier rounds ended: a fit of no round gives `conf/hardware/h800.yaml` again, one of more goes on."""

Values = Mapping[str, float]
Evaluate = Callable[[Sequence[Values]], Sequence[Sequence[float]]]
"""Gives the residuals of each set of values; several are asked for at once, so that they can be run side by side."""


def fit(evaluate: Evaluate, parameters: Sequence[Parameter], num_rounds: int) -> tuple[Values, Sequence[float]]:
    """Fit; gives the best values that were tried, and their residuals."""
    logs = np.array([math.log(parameter.start) for parameter in parameters])
    [best] = evaluate([_values(parameters, logs)])
    damping = _DAMPING
    for _ in range(num_rounds):
        nudges = np.array([_nudge(parameter, log) for parameter, log in zip(parameters, logs, strict=True)])
        answers = evaluate([_values(parameters, logs + each) for each in np.diag(nudges)])
        slopes = (np.array(answers) - np.array(best)).T / nudges
        steps = [_step(slopes, np.array(best), damping * factor) for factor in (0.3, 3.0, 30.0)]
        tried = evaluate([_values(parameters, logs + step) for step in steps])
        losses = [loss(residuals) for residuals in tried]
        winner = int(np.argmin(losses))
        if losses[winner] >= loss(best):
            damping *= 10
            continue
        logs = np.clip(logs + steps[winner], _bounds(parameters, "low"), _bounds(parameters, "high"))
        best = tried[winner]
    return _values(parameters, logs), best


def loss(residuals: Sequence[float]) -> float:
    """Huber's loss, summed."""
    sizes = np.abs(residuals)
    return float(np.where(sizes < ROBUST_FROM, sizes**2 / 2, ROBUST_FROM * (sizes - ROBUST_FROM / 2)).sum())


def _step(
    slopes: npt.NDArray[np.float64], residuals: npt.NDArray[np.float64], damping: float
) -> npt.NDArray[np.float64]:
    weights = np.sqrt(np.minimum(1.0, ROBUST_FROM / np.maximum(np.abs(residuals), 1e-9)))
    weighted = slopes * weights[:, None]
    normal = weighted.T @ weighted + damping * np.eye(slopes.shape[1])
    return -np.asarray(np.linalg.solve(normal, weighted.T @ (residuals * weights)), dtype=np.float64)


def _nudge(parameter: Parameter, log: float) -> float:
    """By how much a parameter's logarithm is moved for its derivative: a whole number by one at least."""
    value = parameter.value(log)
    return max(_DIFFERENCE, math.log((value + 1) / value)) if parameter.is_whole else _DIFFERENCE


def _values(parameters: Sequence[Parameter], logs: npt.NDArray[np.float64]) -> Values:
    return {parameter.key: parameter.value(log) for parameter, log in zip(parameters, logs, strict=True)}


def _bounds(parameters: Sequence[Parameter], side: str) -> npt.NDArray[np.float64]:
    return np.log([getattr(parameter, side) for parameter in parameters])
