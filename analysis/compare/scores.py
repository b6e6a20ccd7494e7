"""The held-out scores of a comparison, which table and figure share.

Invariant: every mean is over the same sets, those that all runs with scores have, and a step counts for a run only
where each of them has a score: without one of them a mean would be of easier or harder prompts. Where a set has other
prompts in another run, as with another suffix, that is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from rollpacker.analysis.compare.columns import Column
from rollpacker.analysis.runs import Run, shared_index
from rollpacker.metrics.tables import EVALUATION_FOLDER
from rollpacker.runtime.run.held_out_sets import read_sets

_RecordedSets = Mapping[str, tuple[Mapping[str, int], int]]
"""As `read_sets` gives them."""
_VALUES = ["reward_mean", "se_over_prompts"]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What the policies of some runs score on the held-out sets that all of them have."""

    by_run: Mapping[Path, pd.DataFrame]
    """Of each run with scores, by its folder: `reward_mean` and `se_over_prompts` of each set, a row per number of
    finished steps."""
    sets: Sequence[str]
    """That all runs with scores have."""
    left_out: Sequence[str]
    """A sentence for each set, and for the steps of each run, that no mean has."""

    def of(self, runs: Iterable[Run]) -> list[pd.DataFrame]:
        """The scores of each run that has any, at the steps that all of these have."""
        found = [self.by_run[run.folder] for run in runs if run.folder in self.by_run]
        steps = shared_index(found)
        return [own.loc[steps] for own in found]

    def steps(self, num_steps: int) -> list[int]:
        """The evaluations that all runs with scores have, up to so many finished steps."""
        return [step for step in shared_index(self.by_run.values()) if step <= num_steps]

    def said(self, num_steps: int) -> Iterator[str]:
        """What the means over so many finished steps lack, a sentence each."""
        yield from self.left_out
        if self.by_run and not self.steps(num_steps):
            yield f"No step up to {num_steps} has a held-out score of every run that has scores: none is compared."


def scores_of(columns: Sequence[Column]) -> Scores:
    """Read the scores of all runs that have any."""
    runs = {run.folder: run for column in columns for run in column.runs}
    tables = {folder: table for folder, run in runs.items() if len(table := run.evaluations)}
    measured = [folder for folder in tables if not runs[folder].is_modelled]  # a modelled run makes up its prompts
    recorded = {folder: read_sets(folder / EVALUATION_FOLDER) for folder in measured}
    owners = {name: {folder for folder in tables if name in set(tables[folder]["set"])} for name in _names(tables)}
    sets = [name for name, folders in owners.items() if len(folders) == len(tables)]
    left_out = [
        f"The held-out set {name} is left out: {next(folder for folder in tables if folder not in folders)} "
        "has no score of it."
        for name, folders in owners.items()
        if name not in sets
    ]
    left_out += [sentence for name in sets for sentence in _with_other_prompts(name, recorded)]
    by_run = {}
    for folder, table in tables.items():
        own = table[table["set"].isin(sets)].pivot(index="step", columns="set", values=_VALUES).astype(float)
        first = max((since for name, (_, since) in recorded.get(folder, {}).items() if name in sets), default=0)
        if (own.index < first).any():
            left_out.append(
                f"Held-out prompts of {folder} were edited before its evaluation at step {first}: its earlier "
                "scores are in no mean."
            )
            own = own.loc[first:]
        by_run[folder] = own.dropna(subset=[("reward_mean", name) for name in sets])
        for name in sets:
            if lost := list(own.index[own["reward_mean", name].isna()]):
                steps = ", ".join(map(str, lost))
                left_out.append(
                    f"{folder} has no held-out score of {name} at step {steps}: no mean has this step of it."
                )
    return Scores(by_run=by_run if sets else {}, sets=sets, left_out=left_out)


def _names(tables: Mapping[Path, pd.DataFrame]) -> list[str]:
    """Of all sets, in the order of the tables."""
    return list(dict.fromkeys(name for table in tables.values() for name in table["set"]))


def _with_other_prompts(name: str, recorded: Mapping[Path, _RecordedSets]) -> Iterator[str]:
    """Say where a set has other prompts than in the first run that recorded them."""
    prompts = {folder: own[name][0] for folder, own in recorded.items() if name in own}
    first = next(iter(prompts), None)
    for folder, checksums in prompts.items():
        if first is not None and checksums != prompts[first]:
            yield f"The held-out set {name} has other prompts in {folder} than in {first}."
