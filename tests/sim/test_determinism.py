"""Same seed, same configuration: the same bytes, in any process and wherever the run was stopped and resumed."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from rollpacker import pipeline
from rollpacker.metrics.schemas import TABLES
from rollpacker.metrics.table_writer import STEPS_PER_MERGED_PART
from rollpacker.metrics.tables import read_frame
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.sim.composed import config_of, small

NUM_STEPS = 6
SYSTEMS = ("verl", "rollpacker", "dapo-rollpacker")
SMALL = small(
    *("rollout.num_prompts=6", "rollout.num_responses=3", "engine.num_engines=3", "workload.num_prompts=40"),
    "run.resume=auto",
)


def train(run_dir: Path, *words: str, **run: object) -> Path:
    pipeline.run(config_of(run_dir, [*SMALL, *words], **run))
    return run_dir


def train_in_stops(run_dir: Path, system: str, stops: Sequence[int]) -> Path:
    """Stop after these numbers of steps, and resume each time."""
    for num_steps in stops:
        train(run_dir, f"system={system}", num_steps=num_steps)
    return run_dir


def parquet_of(run_dir: Path) -> dict[str, str]:
    """The bytes of every Parquet file, hashed."""
    folder = run_dir / "metrics"
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.rglob("*.parquet"))
    }


@pytest.fixture(scope="module", params=SYSTEMS)
def unbroken(request, tmp_path_factory):
    """A system, and what a run of it leaves that was not stopped."""
    run_dir = tmp_path_factory.mktemp("unbroken") / "run"
    return request.param, parquet_of(train_in_stops(run_dir, request.param, [NUM_STEPS]))


def test_a_run_stopped_after_any_step_and_resumed_gives_the_bytes_of_an_unbroken_one(tmp_path, unbroken):
    system, expected = unbroken
    assert len(expected) == len(TABLES) * NUM_STEPS
    for stop in range(1, NUM_STEPS):
        broken = train_in_stops(tmp_path / str(stop), system, [stop, NUM_STEPS])
        assert parquet_of(broken) == expected, f"stopped after step {stop}"


def test_a_run_stopped_after_every_step_gives_the_bytes_of_an_unbroken_one(tmp_path, unbroken):
    system, expected = unbroken
    assert parquet_of(train_in_stops(tmp_path / "run", system, range(1, NUM_STEPS + 1))) == expected


def test_files_that_were_merged_are_the_same_bytes_after_a_resume(tmp_path):
    words = ["rollout.num_prompts=3", "rollout.num_responses=2", "engine.num_engines=1"]
    total = STEPS_PER_MERGED_PART + 4
    expected = parquet_of(train(tmp_path / "unbroken", *words, num_steps=total))
    assert any("steps-000000" in name for name in expected)
    for num_steps in (STEPS_PER_MERGED_PART - 3, STEPS_PER_MERGED_PART + 2, total):
        train(tmp_path / "broken", *words, num_steps=num_steps)
    assert parquet_of(tmp_path / "broken") == expected


def test_the_first_step_of_a_run_begins_at_zero_although_weights_were_brought_before(tmp_path):
    assert read_frame(train(tmp_path / "run", num_steps=1), "responses")["launched_at_s"].min() == 0


def test_the_clock_of_a_resumed_run_goes_on_where_the_checkpoint_stopped_to_the_last_bit():
    elapsed_s, begun_at_s = 0.1 + 0.2, []

    async def resume() -> None:
        clock = RunClock(elapsed_s)
        clock.start()
        begun_at_s.append(clock.now())

    run_in_virtual_time(resume())
    assert begun_at_s == [elapsed_s]
