"""Modelled runs that leave at any moment: nothing is lost, nothing is repeated, and the tables are those of a run that
was never asked to leave."""

import asyncio
import functools
import itertools
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollpacker import pipeline
from rollpacker.core.errors import Preempted, WorldError
from rollpacker.metrics.event_log import attempt_paths
from rollpacker.metrics.tables import read_table
from rollpacker.runtime.job.deadline import CLOSING_S, PreemptionDeadline
from rollpacker.runtime.job.preemption import Preemption, SlurmPreemption, loop_time
from rollpacker.runtime.rollout.replay import replay
from rollpacker.runtime.run.checkpoints import CheckpointStore
from rollpacker.runtime.run.status import read_status
from rollpacker.sim.backend import ModelledBackend
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.allocations import DeafListener, allocation
from tests.sim import composed
from tests.sim.test_determinism import SMALL, parquet_of

NUM_STEPS = 5
SYSTEMS = {
    "verl": ["system=verl"],
    "rollpacker": ["system=rollpacker"],
    "streamed": ["system=rollpacker", "system.stream=true", "system.planner=false"],
}


def config_of(run_dir: Path, name: str, *words: str):
    return composed.config_of(run_dir, [*SMALL, *SYSTEMS[name], *words], num_steps=NUM_STEPS)


def finished_steps(run_dir: Path) -> int:
    checkpoint = CheckpointStore(run_dir, keep=2).find().newest
    return checkpoint.meta.step if checkpoint else 0


def elapsed_s(run_dir: Path) -> float:
    checkpoint = CheckpointStore(run_dir, keep=2).find().newest
    return checkpoint.meta.elapsed_s if checkpoint else 0.0


def attempt(config, *, asked_after_s: float | None, remaining_s: float) -> str:
    """Make an attempt that is asked to leave so long after its first step began; gives the reason of its deadline."""

    async def train():
        loop = asyncio.get_running_loop()
        deadline = PreemptionDeadline(loop.time)
        watched = iter([True])

        def ask_later(*_):
            if asked_after_s is not None and next(watched, False):
                gone_at = loop.time() + asked_after_s + remaining_s
                loop.call_later(asked_after_s, deadline.ask, "asked", gone_at)

        await pipeline.train(config, ModelledBackend(config), lambda *_: ask_later, Preemption(deadline))

    try:
        run_in_virtual_time(train())
    except Preempted as preempted:
        return preempted.problem
    return ""


@dataclass(frozen=True)
class Whole:
    """What a run leaves that was never asked to leave."""

    parquet: dict[str, str]
    steps: list[dict[str, Any]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Of each system by its name; made when it is asked for."""
    folder = tmp_path_factory.mktemp("whole")

    @functools.cache
    def made(name: str) -> Whole:
        pipeline.run(config_of(folder / name, name))
        return Whole(parquet_of(folder / name), read_table(folder / name, "steps").to_pylist())

    return made


@settings(max_examples=12)
@given(data=st.data())
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_run_that_leaves_at_any_moments_gives_the_bytes_of_an_unbroken_one(whole, name, data):
    duration_s = whole(name).steps[-1]["finished_at_s"]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        config = config_of(run_dir, name)
        notices = data.draw(
            st.lists(
                st.tuples(
                    st.floats(0, duration_s / 2), st.sampled_from([0.0, CLOSING_S, duration_s / 4, 10 * duration_s])
                ),
                min_size=1,
                max_size=5,
            )
        )
        for asked_after_s, remaining_s in notices:
            before = finished_steps(run_dir)
            reason = attempt(config, asked_after_s=asked_after_s, remaining_s=remaining_s)
            status = read_status(run_dir)
            assert status is not None
            assert status.state == ("preempted" if reason else "finished")
            assert status.finished_steps == finished_steps(run_dir) >= before
        attempt(config, asked_after_s=None, remaining_s=0)
        assert parquet_of(run_dir) == whole(name).parquet
        replay(run_dir)
        assert len(attempt_paths(run_dir)) == len(notices) + 1


def test_a_streamed_half_step_is_dropped_and_made_anew(tmp_path, whole):
    config = config_of(tmp_path / "run", "streamed")
    streamed = [row for row in whole("streamed").steps if row["tokens_streamed"]]
    assert streamed
    row = streamed[-1]
    just_before_the_end_s = row["finished_at_s"] - row["weight_sync_time_s"] - row["train_time_s"] - 1e-3
    assert "asked" in attempt(config, asked_after_s=just_before_the_end_s, remaining_s=0.0)
    assert finished_steps(tmp_path / "run") == row["step"]
    attempt(config, asked_after_s=None, remaining_s=0)
    assert parquet_of(tmp_path / "run") == whole("streamed").parquet


def test_a_notice_with_time_enough_waits_for_the_step_and_one_without_does_not(tmp_path, whole):
    steps = whole("verl").steps
    middle_of_the_third = (steps[1]["finished_at_s"] + steps[2]["finished_at_s"]) / 2
    for remaining_s, finished in ((1e6, 3), (0.0, 2)):
        run_dir = tmp_path / str(finished)
        assert attempt(config_of(run_dir, "verl"), asked_after_s=middle_of_the_third, remaining_s=remaining_s)
        assert finished_steps(run_dir) == finished
        assert len(read_table(run_dir, "steps")) == finished


class JobWithLimit:
    """A job whose time limit is in virtual time; it is requeued as long as it asks for it."""

    def __init__(self, tmp_path: Path, config, limit_s: float):
        self.config = config
        self.limit_s = limit_s
        self.tmp_path = tmp_path
        self.requeue_file = tmp_path / "17.requeue"
        self.errors = []

    def start(self, restart_count: int) -> None:
        async def train():
            here = allocation(
                self.tmp_path, restart_count=restart_count, end_time=elapsed_s(self.config.run.dir) + self.limit_s
            )
            preemption = SlurmPreemption(self.config, here, clock=loop_time, signals=DeafListener())
            await pipeline.train(self.config, ModelledBackend(self.config), preemption=preemption)

        self.requeue_file.unlink(missing_ok=True)
        try:
            run_in_virtual_time(train())
        except (Preempted, WorldError) as error:
            self.errors.append(error)

    def run(self) -> None:
        for restart_count in itertools.count():
            self.start(restart_count)
            if not self.requeue_file.exists():
                return


@pytest.mark.parametrize("name", ["verl", "rollpacker"])
def test_a_run_that_needs_several_time_limits_never_starts_a_step_in_vain_and_ends_as_an_unbroken_one(
    tmp_path, whole, name
):
    longest_s = max(row["step_time_s"] for row in whole(name).steps)
    job = JobWithLimit(tmp_path, config_of(tmp_path / "run", name), 2.5 * longest_s + CLOSING_S + 60)
    job.run()
    assert job.errors
    assert all(isinstance(error, Preempted) for error in job.errors)
    assert all("the next step may take" in error.problem for error in job.errors)
    assert parquet_of(tmp_path / "run") == whole(name).parquet
    assert read_status(tmp_path / "run").state == "finished"
    replay(tmp_path / "run")


def test_a_time_limit_shorter_than_a_step_ends_in_a_reason_and_not_in_a_loop(tmp_path, whole):
    first = whole("verl").steps[0]
    job = JobWithLimit(tmp_path, config_of(tmp_path / "run", "verl"), first["step_time_s"] / 2 + 60)
    job.run()
    *preempted, last = job.errors
    assert len(preempted) == 1
    assert isinstance(last, WorldError)
    assert "cluster.time_limit_min=" in last.remedy
    status = read_status(tmp_path / "run")
    assert (status.state, status.finished_steps, status.job_id) == ("failed", 0, "17")
    assert json.loads((tmp_path / "run" / "jobs" / "17.json").read_text())[-1]["interrupted_step_s"] > 0
