"""Runs that `flash_fig01b`, `flash_theory` and `flash_tail` share: a fixed batch on 16 to 128 GPUs.

128 prompts x 8 responses of Qwen3-8B: 30 runs in turns, and 18 divided, with one to three eighths of the GPUs for the
trainer. Of 15 steps the first three are left out, in which a pipeline fills, and the last two, in which nothing is
admitted: ten are left, which are two cycles of tail batching.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from pydantic import ValidationError

from rollpacker.analysis.runs import Run, Runs
from rollpacker.config.schema import RunConfig
from rollpacker.sim.split import theory_of
from rollpacker.sim.theory import StepTheory

EXPERIMENTS: Final = ("flash-fig01b-turns", "flash-fig01b")
WORKLOADS: Final = {"base": "Base", "think": "Think"}
"""Lengths, by the paper's names for the models."""
NUM_GPUS: Final[Mapping[int, int]] = {16: 2, 32: 4, 128: 16}
"""With the nodes that they are."""
SPLITS: Final = {"7": 1 / 8, "6-7": 2 / 8, "5-7": 3 / 8}
"""GPUs of each node that train, and their share."""
BEST_SPLIT: Final = "Each asynchronous run on divided GPUs is, seed by seed, the fastest of three splits."
"""What the figures of these runs must say."""
STEADY: Final = (3, 13)
"""The first of the steps that count, and the first after them."""


class Split(NamedTuple):
    """A run on divided GPUs."""

    run: Run
    trainer_share: float


def in_turns(runs: Runs, system: str, num_gpus: int, workload: str) -> list[Run]:
    """Engines and trainer take turns on all GPUs."""
    study = f"flash-fig01b-{NUM_GPUS[num_gpus]}-turns"
    return steady(runs.of(setup="flash", study=study, system=system, workload=workload))


def best_splits(runs: Runs, num_gpus: int, workload: str) -> list[Split]:
    """For each seed that every split has, the fastest run of roll-flash over the splits."""
    by_seed: dict[int, list[Split]] = {}
    for split, share in SPLITS.items():
        study = f"flash-fig01b-{NUM_GPUS[num_gpus]}-{split}"
        for run in steady(runs.of(setup="flash", study=study, system="roll-flash", workload=workload)):
            by_seed.setdefault(run.seed, []).append(Split(run, share))
    whole = [splits for splits in by_seed.values() if len(splits) == len(SPLITS)]
    return [max(splits, key=lambda split: split.run.samples_per_s) for splits in whole]


def steady(found: Sequence[Run]) -> list[Run]:
    """What counts of the runs that have got so far."""
    return [run.within(*STEADY) for run in found if run.steps.index[-1] >= STEADY[1] - 1]


def theory(run: Run) -> StepTheory | None:
    """The terms of a run's bounds, with its own longest responses; None of a run of another version."""
    try:
        config = RunConfig.model_validate(run.config)
    except ValidationError:
        return None
    return theory_of(config, run.mean("response_length_max_tokens"))
