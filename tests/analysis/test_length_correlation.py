"""What a recorded run says about how alike a prompt's responses are in length."""

import math
import random

import numpy as np
import pandas as pd
import pytest

from tests.benchmarks.length_correlation import correlations


def responses(rho: float, *, later: float | None = None, num_prompts: int = 400, num_epochs: int = 3) -> pd.DataFrame:
    """Lengths of a Gaussian copula; `later` is the correlation of a prompt's quality from one epoch to the next."""
    rng = random.Random(7)
    rows = []
    for number in range(num_prompts):
        quality = rng.gauss(0, 1)
        for epoch in range(num_epochs):
            for sample in range(8):
                z = math.sqrt(rho) * quality + math.sqrt(1 - rho) * rng.gauss(0, 1)
                length = min(8192, int(700 * math.exp(1.2 * z)))  # with a heavy tail, and cut
                rows.append((f"p{number}", epoch, sample, "math", length, False, "stop"))
            if later is not None:
                quality = later * quality + math.sqrt(1 - later**2) * rng.gauss(0, 1)
    columns = ["prompt", "epoch", "sample", "domain", "length_tokens", "is_raced", "finish_reason"]
    return pd.DataFrame(rows, columns=columns)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.6])
def test_the_correlation_of_the_copula_that_made_the_lengths_comes_out(rho):
    found = correlations(responses(rho)).loc["math"]
    assert found["num_groups"] == 1200
    assert found["within"] == pytest.approx(rho, abs=0.04)
    assert found["epochs"] == pytest.approx(rho, abs=0.04)


def test_a_prompt_that_changes_from_epoch_to_epoch_is_alike_within_a_group_alone():
    found = correlations(responses(0.5, later=0.5)).loc["math"]
    assert found["within"] == pytest.approx(0.5, abs=0.06)
    assert found["epochs"] == pytest.approx(0.25, abs=0.06)


def test_history_foresees_more_long_responses_the_more_alike_they_are():
    shares = [correlations(responses(rho)).loc["math", "foreseen"] for rho in (0.0, 0.3, 0.8)]
    assert shares[0] == pytest.approx(0.2, abs=0.08)
    assert shares[0] + 0.2 < shares[1] < shares[2] - 0.05


def test_each_domain_stands_alone_and_what_raced_does_not_count():
    rows = responses(0.3, num_prompts=40)
    rows.loc[rows["prompt"] == "p1", "domain"] = "code"
    raced = rows.assign(is_raced=True, domain="judge")
    found = correlations(pd.concat([rows, raced]))
    assert list(found.index) == ["code", "math"]
    assert math.isnan(found.loc["code", "within"]), "three groups say nothing"
    assert not np.isnan(found.loc["math", "within"])
    assert correlations(raced).empty
