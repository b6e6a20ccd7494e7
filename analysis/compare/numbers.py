"""What is compared: means over the runs of a column, each with its standard error, over the steps that all runs have.

Speedups are ratios of sums over the steps, as in the paper: per seed where both columns have the same seeds, or else
of the columns' means, so that they fit the times in the rows above.
How well a system learned is what its policy scores on held-out prompts. The reward of the batches that it trained is
not the policy's: a race selects short responses, and a long round hard prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import fmean, stdev
from typing import Final, NamedTuple

import pandas as pd

from rollpacker.analysis.compare.columns import Column
from rollpacker.analysis.compare.scores import Scores
from rollpacker.analysis.runs import Run
from rollpacker.analysis.style import CYCLE_STEPS

NUM_END_STEPS: Final = 2 * CYCLE_STEPS
"""First and last reward are means over two cycles."""

_MORE_DIGITS_BELOW_S: Final = (10.0, 1.0)
"""Times below each of these have one digit more."""


class Estimate(NamedTuple):
    """A mean and its standard error."""

    value: float
    error: float | None = None
    """Over seeds; of a single run's held-out score, over the prompts. None where nothing tells."""


class Row(NamedTuple):
    """One quantity of every column."""

    title: str
    unit: str
    values: Sequence[Estimate | None]
    """None where a column does not have it."""
    num_digits: int
    """Behind the point."""
    is_signed: bool = False


def rows_of(columns: Sequence[Column], scores: Scores, shared: list[int]) -> list[Row]:
    """Compute all rows that some column has, over these steps; the first column is the baseline."""

    def row(title: str, unit: str, num_digits: int, number: Callable[[Run], float]) -> Row:
        values = [
            estimate([number(replace(run, steps=run.steps.loc[shared])) for run in column.runs]) for column in columns
        ]
        return Row(title, unit, values, num_digits)

    def seconds(title: str, name: str) -> Row:
        found = row(title, "s", 1, lambda run: run.mean(name))
        least_s = min((each.value for each in found.values if each), default=0.0)
        return found._replace(num_digits=1 + sum(least_s < bound_s for bound_s in _MORE_DIGITS_BELOW_S))

    num_end = max(1, min(NUM_END_STEPS, len(shared) // 2))
    rows = [
        seconds("step time", "step_time_s"),
        seconds("rollout time", "rollout_time_s"),
        row("longest response", "tokens", 0, lambda run: run.mean("response_length_max_tokens")),
        row("bubble ratio (idle slots)", "%", 0, lambda run: run.bubble_percent),
        row("tokens wasted", "%", 0, lambda run: run.wasted_percent),
        *_held_out(columns, scores, scores.steps(shared[-1] + 1)),
        row("training reward, first steps", "", 2, lambda run: float(run.steps["reward_mean"].head(num_end).mean())),
        row("training reward, last steps", "", 2, lambda run: float(run.steps["reward_mean"].tail(num_end).mean())),
        Row("rollout speedup", "x", [_rollout_speedup(column, columns[0], shared) for column in columns], 2),
        Row("step speedup", "x", [_speedup(column, columns[0], shared, "step_time_s") for column in columns], 2),
    ]
    return [row for row in rows if any(row.values)]


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean over runs and its standard error; None where a run does not know its number."""
    if any(map(math.isnan, values)):
        return None
    return Estimate(fmean(values), stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None)


def _rollout_speedup(column: Column, baseline: Column, shared: list[int]) -> Estimate | None:
    """None also of asynchronous columns, whose rollout goes on outside the time that a step waits for it."""
    if column.is_async or baseline.is_async:
        return None
    return _speedup(column, baseline, shared, "rollout_time_s")


def _speedup(column: Column, baseline: Column, shared: list[int], name: str) -> Estimate | None:
    """How much faster a column is; None where the two cannot be compared."""
    if column is baseline:
        return Estimate(1.0)
    if not _are_comparable(column, baseline):
        return None

    def sum_s(run: Run) -> float:
        return float(run.steps.loc[shared, name].sum())

    if column.by_seed.keys() == baseline.by_seed.keys():
        return estimate([sum_s(base) / sum_s(run) for run, base in _pairs(column, baseline)])
    return Estimate(fmean(map(sum_s, baseline.runs)) / fmean(map(sum_s, column.runs)))


def _are_comparable(column: Column, baseline: Column) -> bool:
    """Whether no modelled number would be compared with a measured one."""
    return column.is_modelled == baseline.is_modelled


def _pairs(column: Column, baseline: Column) -> list[tuple[Run, Run]]:
    """Runs with the baseline's of the same seed."""
    return [(run, baseline.by_seed[run.seed]) for run in column.runs if run.seed in baseline.by_seed]


def _held_out(columns: Sequence[Column], scores: Scores, steps: Sequence[int]) -> list[Row]:
    """Scores at the first and the last of the evaluations that all runs with scores have."""

    def score(column: Column, step: int, sets: Sequence[str]) -> Estimate | None:
        found = [_mean(own, step, sets) for own in scores.of(column.runs)]
        return found[0] if len(found) == 1 else estimate([each.value for each in found]) if found else None

    def gain(column: Column, step: int) -> Estimate | None:
        if column is columns[0] or not _are_comparable(column, columns[0]):
            return None
        pairs = [own for pair in _pairs(column, columns[0]) if len(own := scores.of(pair)) == len(pair)]
        if len(pairs) < 2:  # noqa: PLR2004  (one difference has no error)
            return None
        return estimate([_mean(own, step, sets).value - _mean(base, step, sets).value for own, base in pairs])

    sets = scores.sets
    has_several = len(sets) > 1
    titles = {f"held-out mean of {len(sets)} sets" if has_several else "held-out score": sets}
    titles |= {f"held-out score, {name}": [name] for name in sets if has_several}
    rows = [
        Row(f"{title}, step {step}", "", [score(column, step, own) for column in columns], 3)
        for step in dict.fromkeys([*steps[:1], *steps[-1:]])
        for title, own in titles.items()
    ]
    against = f"held-out {'mean' if has_several else 'score'}, {AGAINST}"
    gains = [Row(against, "", [gain(column, step) for column in columns], 3, is_signed=True) for step in steps[-1:]]
    return [*rows, *gains]


AGAINST: Final = "against the first"
"""Paired: the mean over seeds of the difference to the first column's run of the same seed."""


def _mean(scores: pd.DataFrame, step: int, sets: Sequence[str]) -> Estimate:
    """A run's mean over held-out sets, with its error over their prompts where each set has one."""
    of_step = scores.loc[step]
    values, errors = of_step["reward_mean"][list(sets)], of_step["se_over_prompts"][list(sets)]
    error = None if errors.isna().any() else float((errors**2).sum() ** 0.5 / len(errors))
    return Estimate(float(values.mean()), error)
