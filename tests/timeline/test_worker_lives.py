"""The lives of rollout workers, from a modelled run in which some are lost: they add up to what the steps say."""

import json
import shutil

import pytest

from rollpacker import pipeline
from rollpacker.launch.accounts import accounts_of
from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.metrics.event_log import attempt_path
from rollpacker.metrics.files import write_atomically
from rollpacker.metrics.tables import read_frame
from rollpacker.timeline.run_tables import open_run
from rollpacker.timeline.worker_lives import element_of
from tests.launch.commands import install_command
from tests.sim.composed import config_of
from tests.sim.test_environment import RUN, WORKERS
from tests.timeline.runs import modelled_run

WORDS = (
    *("system=rlhfuse", "elastic=sim", "elastic.modelled.num_workers=2", "elastic.modelled.start_s=1"),
    *("elastic.price_per_gpu_hour=2.5", "run.num_steps=4"),
    "elastic.modelled.losses=[{step: 2, num_workers: 1, delay_s: 5, away_s: 1}]",
)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return modelled_run(tmp_path_factory.mktemp("workers") / "run", *WORDS)


def test_lives_add_up_to_the_columns_of_the_steps(run_dir):
    accounts = accounts_of(open_run(run_dir))
    steps = read_frame(run_dir, "steps")
    lives = accounts.workers
    assert [row["worker"] for row in lives] == ["e0_0-r0", "e0_1-r0", "e0_0-r1"]
    assert sum(row["num_tokens"] for row in lives) == steps["tokens_of_members"].sum() > 0
    assert sum(row["tokens_kept"] for row in lives) == steps["tokens_saved"].sum() > 0
    assert [row["end_reason"] for row in lives] == [
        "it was gone without notice",
        "the run's attempt ended",
        "the run's attempt ended",
    ]
    lost, stayed, _ = lives
    assert lost["tokens_kept"] > 0 == stayed["tokens_kept"]
    assert 0 < lost["tokens_lost"] < lost["tokens_kept"]
    assert all(row["joined_at_s"] < row["serving_at_s"] < row["left_at_s"] for row in lives)
    assert lost["num_pulls"] == 3, "of the steps that it saw"
    assert lost["pulled_bytes"] == steps["weight_sync_bytes"].iloc[:3].sum()
    assert sum(row["num_moved_out"] for row in lives) <= steps["num_requests_moved"].sum()


def test_tokens_of_a_request_that_began_again_after_its_environment_failed_are_of_its_worker(tmp_path):
    fails = ("workload.environment.fail_stop_share=0.1", "workload.environment.turn_timeout_s=30")
    pipeline.run(config_of(tmp_path, [*RUN, "system=rlhfuse", *WORKERS, *fails, "run.num_steps=2"]))
    assert (read_frame(tmp_path, "intervals")["activity"] == "failed").any()
    tokens = read_frame(tmp_path, "steps")["tokens_of_members"].sum()
    assert sum(row["num_tokens"] for row in accounts_of(open_run(tmp_path)).workers) == tokens > 0


def test_allocations_of_a_modelled_run_are_those_of_its_lives_and_the_tables_are_read_like_all_others(run_dir):
    accounts = accounts_of(open_run(run_dir))
    assert accounts.write(run_dir) == ""
    workers, allocations = read_frame(run_dir, "workers"), read_frame(run_dir, "allocations")
    assert len(workers) == 3
    assert list(allocations["kind"]) == ["trainer", *["worker"] * 3]
    assert set(allocations["source"]) == {"run"}
    present_s = workers["left_at_s"] - workers["joined_at_s"]
    of_workers = allocations[allocations["kind"] == "worker"]
    assert list(of_workers["elapsed_s"]) == pytest.approx(list(present_s))
    assert list(of_workers["cost"]) == pytest.approx(list(of_workers["gpu_seconds"] / 3600 * 2.5))
    assert allocations["cost"].isna().tolist() == [True, False, False, False], "the run's own price was not given"


def test_what_a_later_attempt_did_again_is_paid_for_twice(run_dir, tmp_path):
    once, twice = (_seconds(folder, "trainer") for folder in (run_dir, _done_again(run_dir, tmp_path)))
    finished_at_s = read_frame(run_dir, "steps")["finished_at_s"].iloc[-1]
    assert once == pytest.approx([finished_at_s])
    assert twice == pytest.approx([finished_at_s, finished_at_s], rel=0.02)


def test_a_worker_is_paid_for_in_every_attempt_and_between_two_that_it_serves(run_dir, tmp_path):
    """The one that was lost serves in both attempts; the two that remain are there when the next one begins."""
    copy = _done_again(run_dir, tmp_path)
    once, twice = (_seconds(folder, "worker") for folder in (run_dir, copy))
    lost, *_ = accounts_of(open_run(run_dir)).workers
    finished_at_s = read_frame(run_dir, "steps")["finished_at_s"].iloc[-1]
    again = [lost["left_at_s"] - lost["joined_at_s"], finished_at_s, finished_at_s]
    assert sorted(twice) == pytest.approx(sorted([*once, *again]), rel=0.02)
    assert [row["attempt"] for row in accounts_of(open_run(copy)).workers] == [1, 1, 1], "what counts in the tables"


def test_the_attempt_of_a_worker_has_the_number_of_its_log_where_an_earlier_attempt_has_none(run_dir, tmp_path):
    copy = _done_again(run_dir, tmp_path, attempt=3)
    assert [row["attempt"] for row in accounts_of(open_run(copy)).workers] == [3, 3, 3]


def _done_again(run_dir, folder, attempt=1):
    """Copy a run, with another attempt that begins at the same time and does the same."""
    copy = shutil.copytree(run_dir, folder / "run")
    shutil.copy(attempt_path(copy, 0), attempt_path(copy, attempt))
    return copy


def _seconds(run_dir, kind):
    return [row["elapsed_s"] for row in accounts_of(open_run(run_dir)).allocations if row["kind"] == kind]


SACCT = """\
for word in "$@"; do [[ $word != --jobs=* ]] || jobs=",${word#--jobs=},"; done
[[ $jobs != *,11,* || -e forgotten ]] || echo "11|11|FAILED|main|n1|500|501|20501|20000|gres/gpu=8,node=1"
[[ $jobs != *,15,* ]] || echo "15|15|COMPLETED|main|n1|30000|30001|30101|100|gres/gpu=8,node=1"
"""


def test_a_run_that_was_launched_again_still_costs_what_its_earlier_jobs_did(run_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    install_command(tmp_path, "sacct", SACCT, monkeypatch)
    shutil.copytree(run_dir, tmp_path / "run")

    def hours_of(job, began_at):
        start = {"restart_count": 0, "number": 0, "first_step": 0, "began_at": began_at}
        write_atomically(tmp_path / "run" / "jobs" / f"{job}.json", json.dumps([start]).encode())
        submission = Submission(job_id=job, folder=tmp_path, num_nodes=1, submitted_at=began_at)
        write_submission(tmp_path / "run", submission)
        accounts = accounts_of(open_run(tmp_path / "run"))
        assert accounts.write(tmp_path / "run") == ""
        return [(row["job"], row["gpu_seconds"]) for row in accounts.allocations]

    assert hours_of("11", 500.0) == [("11", 160_000)]
    assert hours_of("15", 30_000.0) == [("11", 160_000), ("15", 800)]
    (tmp_path / "forgotten").touch()
    assert hours_of("15", 30_000.0) == [("11", 160_000), ("15", 800)]
    assert list(read_frame(tmp_path / "run", "allocations")["job"]) == ["11", "15"]


def test_a_run_that_takes_no_workers_has_no_accounts(tmp_path):
    assert accounts_of(open_run(modelled_run(tmp_path / "run", "run.num_steps=1"))) is None


def test_a_worker_is_named_after_the_element_of_its_array():
    assert element_of("e4711_3-r1") == "4711_3"
