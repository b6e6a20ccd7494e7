"""What a modelled run that is killed and resumed from a periodic checkpoint lacks of one that goes on from it."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from rollpacker import pipeline
from rollpacker.core.errors import WorldError
from rollpacker.core.events import Event, StepStarted
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.rollout.listeners import OnEvent
from rollpacker.runtime.run.opening import Watch
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of
from tests.sim.test_determinism import SMALL
from tests.sim.test_turns import TurnsBackend


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_run_that_resumes_from_a_periodic_checkpoint_lacks_only_its_time_and_rows(tmp_path, is_shared):
    """On shared GPUs a checkpoint takes time: engines sleep meanwhile."""
    resumed_at = 2
    words = [*SMALL, "system=verl", f"run.checkpoint_every_steps={resumed_at}"]

    def run(name: str, watch: Watch | None = None) -> Path:
        config = config_of(tmp_path / name, words, num_steps=5)
        backend = TurnsBackend(config, num_sharing=3) if is_shared else ModelledBackend(config)
        run_in_virtual_time(pipeline.train(config, backend, watch))
        return tmp_path / name

    def watch(*_: object) -> OnEvent:
        def on_event(event: Event, *_: object) -> None:
            if isinstance(event, StepStarted) and event.step == resumed_at + 1:
                raise WorldError("The cluster is gone.")

        return on_event

    unbroken = run("unbroken")
    with pytest.raises(WorldError):
        run("broken", watch)
    broken = run("broken")
    lost_s, done = _checkpoint_of(unbroken, resumed_at)
    assert (lost_s > 1, set(done) > {"checkpoint"}) == (is_shared, is_shared)
    assert done.count("checkpoint") == 1
    assert _checkpoint_of(broken, resumed_at) == (0, [])
    for table in TABLES:
        before, after = (_rows_but_of_checkpoint(run_dir, table, resumed_at) for run_dir in (unbroken, broken))
        for column in [name for name in before if name.endswith("_at_s")]:
            after[column] += lost_s * (after["step"] >= resumed_at)
        assert_frame_equal(before, after, rtol=1e-9 if is_shared else 0, atol=0, obj=table)


def _checkpoint_of(run_dir: Path, step: int) -> tuple[float, list[str]]:
    """The time of the checkpoint before a step, and the activities in it."""
    rows = read_frame(run_dir, "intervals")
    is_of_checkpoint = _is_of_checkpoint(rows, step)
    time_s = read_frame(run_dir, "steps").set_index("step")["checkpoint_time_s"][step]
    return time_s, rows[is_of_checkpoint]["activity"].tolist()


def _rows_but_of_checkpoint(run_dir: Path, table: str, step: int) -> pd.DataFrame:
    rows = read_frame(run_dir, table)
    if table == "intervals":
        rows = rows[~_is_of_checkpoint(rows, step)].reset_index(drop=True)
    return rows.drop(columns="checkpoint_time_s", errors="ignore")


def _is_of_checkpoint(intervals: pd.DataFrame, step: int) -> pd.Series:
    """Which rows of a step ended before its rollout began."""
    of_step = intervals["step"] == step
    [began_at_s] = intervals[of_step & (intervals["activity"] == "rollout")]["started_at_s"]
    return of_step & (intervals["ended_at_s"] <= began_at_s)
