"""The modelled runs that answer the paper's rows.

Invariant: a setup is the paper's (section 7), in words that `rollpacker train` takes; nothing in it differs between
systems but the system, and nothing between models but the experiment. A run is short: two cycles of short rounds and a
long one, or a few plain rounds; means weigh the kinds as they come in a long run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from rollpacker.analysis.calibration.reference import Row

_COLUMNS = {
    "step_time_s": "step",
    "rollout_time_s": "rollout",
    "exposed_reward_time_s": "reward",
    "train_time_s": "train",
    "weight_sync_time_s": "weight_sync",
    "num_preemptions": "preemptions",
}
"""Of `steps`, and the quantity of the reference."""

_CLUSTERS = {
    "7B": ("experiment=e2e", "model=qwen2.5-7b"),
    "14B": ("experiment=e2e", "model=qwen2.5-14b"),
    "8B TP1": ("experiment=fig06",),
    "8B TP2": ("experiment=fig06", "engine.num_engines=4", "engine.tensor_parallel=2"),
}

_CYCLE_STEPS = 10
"""Twice four short rounds and a long one."""

_PLAIN_STEPS = 8
"""Enough for means: of three batches, two may or may not have a response at the cap, which is 20 % of a step."""


class Setup(NamedTuple):
    """One run."""

    model: str
    system: str
    task: str

    @property
    def words(self) -> list[str]:
        """What `rollpacker train` is told, but for the cluster and the run's folder."""
        num_steps = _PLAIN_STEPS if self.is_plain else _CYCLE_STEPS
        return [
            "backend=sim",
            *_CLUSTERS[self.model],
            f"system={self.system}",
            f"workload={self.task}",
            f"run.num_steps={num_steps}",
            "run.checkpoint_every_steps=0",
            "run.progress=none",
        ]

    @property
    def is_plain(self) -> bool:
        return not self.system.startswith(("tail", "rollpacker"))


def setups_of(rows: Iterable[Row]) -> list[Setup]:
    """Every run that the rows need, once, with the baseline that speedups are relative to."""
    wanted = [Setup(row.model, row.system, row.task) for row in rows]
    baselines = [Setup(row.model, "verl", row.task) for row in rows if row.quantity == "speedup"]
    return list(dict.fromkeys(wanted + baselines))


def run_setup(setup: Setup, extra: Sequence[str], folder: Path) -> pd.DataFrame:
    """Model one run in this process; leaves nothing in `folder`.

    Returns:
        By kind of round: mean seconds of each stage, preemptions, and `num_rounds`.
    """
    from rollpacker import pipeline
    from rollpacker.config.compose import compose
    from rollpacker.metrics.tables import read_frame

    run_dir = folder / "-".join(setup).replace(" ", "-")
    try:
        pipeline.run(compose([*setup.words, *extra, f"run.dir={run_dir}"]))
        kinds = read_frame(run_dir, "steps").groupby("round_kind")
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    means = kinds[list(_COLUMNS)].mean().rename(columns=_COLUMNS)
    return means.assign(num_rounds=kinds.size())


def predict(row: Row, summaries: Mapping[Setup, pd.DataFrame]) -> float:
    """What the model says where the paper says `row.value`."""
    summary = summaries[Setup(row.model, row.system, row.task)]
    if row.quantity == "speedup":
        return _mean(summaries[Setup(row.model, "verl", row.task)], "step", "all") / _mean(summary, "step", "all")
    stage = row.quantity.removesuffix("_share")
    value = _mean(summary, stage, row.kind)
    if stage == row.quantity:
        return value
    if stage == "train":  # Table 1 has no stage for it, and its three add up to the step
        value += _mean(summary, "weight_sync", row.kind)
    return value / _mean(summary, "step", row.kind)


def _mean(summary: pd.DataFrame, stage: str, kind: str) -> float:
    """Over the rounds of a kind, or over `all`."""
    rows = summary if kind == "all" else summary.loc[[kind]]
    return float(np.average(rows[stage], weights=rows["num_rounds"]))
