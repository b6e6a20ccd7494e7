"""Slurm wants the nodes of a job: it leaves with a checkpoint, waits its turn, and goes on as if nothing had been."""

import json

import pytest

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.runtime.rollout.replay import replay
from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS, MiniCluster
from tests.e2e.invariants import assert_ended_as
from tests.e2e.launched import rows, trained_prompts
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NUM_PROMPTS = 40


def submit(cluster: MiniCluster, mode: str, run_dir, inputs, *overrides) -> SubmittedRun:
    """Submit to the partition whose jobs are preempted in this way."""
    partition = f"cluster.partition={PREEMPTIBLE_PARTITIONS[mode]}"
    return SubmittedRun(cluster, run_dir, *small_run(inputs, partition, *overrides))


def take_all_nodes(cluster: MiniCluster) -> None:
    cluster.submit("-N2", "--exclusive", "-p", "main", "-o", "/dev/null", script="sleep 1")


def assert_went_on_as_if_nothing_had_been(run: SubmittedRun) -> None:
    assert run.wait() == "COMPLETED", run.output()
    assert run.num_restarts() == 1
    assert run.status().state == "finished"
    steps = [row["step"] for row in rows(run.run_dir, "steps")]
    assert steps == list(range(len(steps)))
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained)) == NUM_PROMPTS
    assert len(attempt_paths(run.run_dir)) == 2
    assert sorted(folder.name for folder in (run.run_dir / "logs").iterdir()) == ["attempt-000", "attempt-001"]
    replay(run.run_dir)


def test_broken_off_in_the_middle_of_a_rollout_and_requeued(cluster, inputs, unbroken, tmp_path):
    run = submit(cluster, "REQUEUE", tmp_path / "run", inputs, "cluster.num_nodes=1")
    run.wait_for_steps(3)
    run.freeze_engines()
    run.wait_until_frozen()
    take_all_nodes(cluster)
    run.wait_until(lambda: run.status().state == "preempted")
    run.thaw()
    assert run.status().finished_steps >= 3
    assert "SIGURG came, with 15 s to leave" in run.status().reason
    attempt = json.loads((run.run_dir / "jobs" / f"{run.job_id}.json").read_text())[0]
    assert attempt["interrupted_step_s"] > 0
    assert_went_on_as_if_nothing_had_been(run)
    assert_ended_as(run.run_dir, unbroken)
    assert not cluster.processes_on("node1")
    assert not cluster.processes_on("node2")


def test_told_by_sigterm_alone_a_job_that_would_be_cancelled_is_back_in_the_queue(
    terminating_cluster, inputs, unbroken, tmp_path
):
    run = submit(terminating_cluster, "CANCEL", tmp_path / "run", inputs, "engine.num_engines=2")
    run.wait_for_steps(3)
    run.freeze_engines()
    take_all_nodes(terminating_cluster)
    run.wait_until(lambda: run.status().state == "preempted")
    run.thaw()
    assert_went_on_as_if_nothing_had_been(run)
    assert "SIGTERM came, with 15 s to leave" in run.output()
    assert {row["engine"] for row in rows(run.run_dir, "responses")} == {"engine-0", "engine-1"}  # one on each node
    assert_ended_as(run.run_dir, unbroken)
