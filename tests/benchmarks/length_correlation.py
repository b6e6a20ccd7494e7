"""Measures how alike a prompt's responses are in length: `python -m tests.benchmarks.length_correlation RUN.DIR`.

Of a recorded run, within a group and from one epoch to another, by domain. It is the number that `workload.rho` guesses
and that `system.length_history` lives on. Lengths become normal scores within their domain, so that neither the tail
nor a length limit weighs; then a correlation is that of the Gaussian copula:

    within    one-way intraclass correlation, (MSB - MSW) / (MSB + (k - 1) MSW), with groups of k responses
    epochs    covariance of the means of a prompt's two groups, one epoch after the other, over the variance of a score

And as the machine sees it: of the prompts whose last responses were the longest fifth of their epoch, how many of the
longest 2 % of the responses of the next epoch they have; a fifth, if history says nothing.

Only responses of rounds without a race count: in a race the long ones are aborted. So the run is one of plain batches,
or of tail batching without prompts and responses beyond those that are needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pandas as pd

from rollpacker.metrics.tables import read_frame

LONGEST_RESPONSES = 0.02
LONGEST_PROMPTS = 0.2
FEWEST_PROMPTS = 10
"""Known in two epochs, below which nothing is said of epochs."""


def correlations(responses: pd.DataFrame) -> pd.DataFrame:
    """Compute both correlations and the share of long responses that was foreseen, a row per domain.

    Args:
        responses: The table of that name; NaN where there are too few groups of several responses, or too few prompts
            in two epochs.
    """
    whole = responses[~responses["is_raced"].astype(bool) & (responses["finish_reason"] != "aborted")]
    rows = {str(domain): _of_domain(of_domain) for domain, of_domain in whole.groupby("domain")}
    return pd.DataFrame.from_dict(rows, orient="index")


def _of_domain(rows: pd.DataFrame) -> dict[str, float]:
    ranks = rows["length_tokens"].rank().to_numpy()
    scores = pd.Series([NormalDist().inv_cdf((rank - 0.5) / len(rows)) for rank in ranks], index=rows.index)
    groups = scores.groupby([rows["prompt"], rows["epoch"]])
    return {
        "num_groups": groups.ngroups,
        "within": _intraclass(groups.mean(), groups.var(), groups.size()),
        "epochs": _across_epochs(groups.mean(), float(scores.var())),
        "foreseen": _foreseen(rows),
    }


def _intraclass(means: pd.Series, variances: pd.Series, sizes: pd.Series) -> float:
    size = float(sizes.mean())
    if len(means) < FEWEST_PROMPTS or size < 2:
        return float("nan")
    between, within = size * float(means.var()), float(variances.mean())
    return (between - within) / (between + (size - 1) * within)


def _across_epochs(means: pd.Series, variance: float) -> float:
    wide = means.unstack("epoch")
    now, later = wide.iloc[:, :-1].to_numpy().ravel(), wide.iloc[:, 1:].to_numpy().ravel()
    both = ~(np.isnan(now) | np.isnan(later))
    if both.sum() < FEWEST_PROMPTS:
        return float("nan")
    return float(np.cov(now[both], later[both])[0, 1] / variance)


def _foreseen(rows: pd.DataFrame) -> float:
    means = rows.groupby(["prompt", "epoch"])["length_tokens"].mean().unstack("epoch")
    limit = rows["length_tokens"].quantile(1 - LONGEST_RESPONSES)
    num_long = num_foreseen = 0
    for epoch, before in zip(means.columns[1:], means.columns[:-1], strict=True):
        known = means[before].dropna()
        if len(known) < FEWEST_PROMPTS:
            continue
        predicted = set(known.nlargest(round(LONGEST_PROMPTS * len(known))).index)
        of_epoch = rows[(rows["epoch"] == epoch) & rows["prompt"].isin(known.index)]
        is_long = of_epoch["length_tokens"] >= limit
        num_long += int(is_long.sum())
        num_foreseen += int((is_long & of_epoch["prompt"].isin(predicted)).sum())
    return num_foreseen / num_long if num_long else float("nan")


def main() -> None:
    """Print a row per domain."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("run_dir", type=Path)
    found = correlations(read_frame(parser.parse_args().run_dir, "responses"))
    if found.empty:
        sys.exit("Every round of this run races: take a run of plain batches (system=verl or ours-exact).")
    print(found.to_string(float_format="{:.2f}".format))


if __name__ == "__main__":
    main()
