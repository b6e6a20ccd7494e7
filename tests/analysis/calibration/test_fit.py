"""The fit finds what the data were made from, whatever does not fit among them."""

import math

import numpy as np
import pytest

from rollpacker.analysis.calibration.fit import ROBUST_FROM, Parameter, fit, loss

TRUTH = {"base_s": 0.02, "share": 0.4}
PARAMETERS = [
    Parameter(key="base_s", start=0.005, low=1e-4, high=1.0),
    Parameter(key="share", start=0.9, low=0.1, high=1.0),
]
SIZES = np.array([0.01, 0.03, 0.1, 0.3, 1.0])


def times(values):
    return values["base_s"] + SIZES / values["share"]


def residuals_of(*, outlier: float = 1.0):
    """Of a model with a fixed time and a rate; one number of the data may be off by a factor."""
    data = times(TRUTH) * np.array([1, 1, outlier, 1, 1])
    return lambda trials: [list(np.log(times(values) / data)) for values in trials]


def test_parameters_that_made_the_data_are_found():
    values, residuals = fit(residuals_of(), PARAMETERS, num_rounds=12)
    assert values == pytest.approx(TRUTH, rel=0.01)
    assert max(map(abs, residuals)) < 0.01


def test_a_number_that_cannot_be_explained_bends_the_others_little():
    values, residuals = fit(residuals_of(outlier=5.0), PARAMETERS, num_rounds=20)
    assert values == pytest.approx(TRUTH, rel=0.2)
    assert residuals[2] == pytest.approx(-math.log(5), abs=0.15)


def test_no_round_makes_it_worse_and_without_a_round_nothing_moves():
    evaluate = residuals_of(outlier=2.0)
    losses = [loss(fit(evaluate, PARAMETERS, num_rounds=number)[1]) for number in range(6)]
    assert losses == sorted(losses, reverse=True)
    assert fit(evaluate, PARAMETERS, num_rounds=0)[0] == {"base_s": 0.005, "share": 0.9}


def test_parameters_stay_within_their_bounds_and_whole_numbers_are_whole():
    tight = [
        Parameter(key="base_s", start=0.02, low=0.015, high=0.018),
        Parameter(key="share", start=3, low=1, high=9, is_whole=True),
    ]
    values, _ = fit(residuals_of(), tight, num_rounds=3)
    assert 0.015 <= values["base_s"] <= 0.018
    assert values["share"] == 1


def test_large_residuals_count_linearly_and_small_ones_by_their_square():
    assert loss([0.1]) == pytest.approx(0.005)
    assert loss([2.1]) - loss([1.1]) == pytest.approx(ROBUST_FROM)
