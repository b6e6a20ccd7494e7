"""What the `intervals` table says of a modelled run in which requests move between engines."""

import pytest

from rollpacker import pipeline
from rollpacker.config.compose import compose
from rollpacker.metrics.tables import read_frame
from tests.sim.test_systems import SMALL


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("run")
    pipeline.run(compose([*SMALL, f"run.dir={run_dir}", "system=rlhfuse", "run.num_steps=2"]))
    return run_dir


def request_of(row) -> str:
    return f"r{row['round']}:{row['prompt']}@{row['epoch']}#{row['sample']}"


def test_the_stretches_of_a_response_that_moved_fill_its_time_up_to_its_last_engine(streamed):
    intervals, responses = read_frame(streamed, "intervals"), read_frame(streamed, "responses")
    moved = responses[responses["placed_at_s"] > responses["launched_at_s"]]
    stretches = intervals[intervals["activity"] == "evicted"]
    assert len(moved) > 0
    assert set(stretches["subject"]) == {request_of(row) for _, row in moved.iterrows()}
    for _, row in moved.iterrows():
        mine = stretches[stretches["subject"] == request_of(row)].sort_values("started_at_s")
        assert mine["started_at_s"].iloc[0] == row["launched_at_s"]
        assert (mine["ended_at_s"] >= mine["started_at_s"]).all()
        assert mine["ended_at_s"].iloc[-1] <= row["placed_at_s"] <= row["finished_at_s"]
        assert row["engine"] not in set(mine["actor"])


def test_lent_engines_sleep_while_the_trainer_streams_and_load_weights_when_all_do(streamed):
    intervals = read_frame(streamed, "intervals")
    for step, rows in intervals.groupby("step"):
        spans = dict(iter(rows.groupby("activity")))
        asleep, stream, loading = spans["asleep"], spans["stream"], spans["load_weights"]
        assert len(asleep) == 2, step
        assert len(loading) == 4
        assert asleep["started_at_s"].max() <= stream["started_at_s"].min()
        assert asleep["ended_at_s"].max() <= loading["started_at_s"].min()
        assert loading["ended_at_s"].max() <= spans["weight_sync"]["ended_at_s"].max()


def test_engines_generate_no_longer_than_the_round_although_the_driver_learns_of_aborts_after_the_training(tmp_path):
    pipeline.run(compose([*SMALL, f"run.dir={tmp_path}", "system=tail-reward", "run.num_steps=1"]))
    rows = read_frame(tmp_path, "intervals").set_index("activity")
    assert rows.loc["generate", "ended_at_s"].max() < rows.loc["train", "ended_at_s"] - 1
