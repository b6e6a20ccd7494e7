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

from rollpacker.analysis.calibration.reference import Row

_COLUMNS = {
    "step": "step_time_s",
    "rollout": "rollout_time_s",
    "reward": "exposed_reward_time_s",
    "train": "train_time_s",
    "weight_sync": "weight_sync_time_s",
    "preemptions": "num_preemptions",
}
"""Of `steps`, by the quantity of the reference."""

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


class Summary(NamedTuple):
    """What came of a run: mean seconds of each stage, and preemptions, by kind of round."""

    seconds: Mapping[str, Mapping[str, float]]
    weights: Mapping[str, int]
    """How many rounds of each kind there were."""

    def mean(self, stage: str, kind: str) -> float:
        """Over the rounds of a kind, or over `all`."""
        if kind != "all":
            return self.seconds[kind][stage]
        total = sum(self.weights.values())
        return sum(self.seconds[each][stage] * weight for each, weight in self.weights.items()) / total


def setups_of(rows: Iterable[Row]) -> list[Setup]:
    """Every run that the rows need, once, with the baseline that speedups are relative to."""
    wanted = [Setup(row.model, row.system, row.task) for row in rows]
    baselines = [Setup(row.model, "verl", row.task) for row in rows if row.quantity == "speedup"]
    return list(dict.fromkeys(wanted + baselines))


def run_setup(setup: Setup, extra: Sequence[str], folder: Path) -> Summary:
    """Model one run in this process; leaves nothing in `folder`."""
    from rollpacker import pipeline
    from rollpacker.config.compose import compose
    from rollpacker.metrics.tables import read_frame

    run_dir = folder / "-".join(setup).replace(" ", "-")
    try:
        pipeline.run(compose([*setup.words, *extra, f"run.dir={run_dir}"]))
        steps = read_frame(run_dir, "steps")
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)
    seconds = {
        str(kind): {quantity: float(of_kind[column].mean()) for quantity, column in _COLUMNS.items()}
        for kind, of_kind in steps.groupby("round_kind")
    }
    return Summary(seconds, {str(kind): int(count) for kind, count in steps["round_kind"].value_counts().items()})


def predict(row: Row, summaries: Mapping[Setup, Summary]) -> float:
    """What the model says where the paper says `row.value`."""
    summary = summaries[Setup(row.model, row.system, row.task)]
    if row.quantity == "speedup":
        return summaries[Setup(row.model, "verl", row.task)].mean("step", "all") / summary.mean("step", "all")
    stage = row.quantity.removesuffix("_share")
    seconds = summary.mean(stage, row.kind)
    if stage == row.quantity:
        return seconds
    if stage == "train":  # Table 1 has no stage for it, and its three add up to the step
        seconds += summary.mean("weight_sync", row.kind)
    return seconds / summary.mean("step", row.kind)
