"""Slurm wants the nodes of a job: it leaves with a checkpoint, waits its turn, and goes on as if nothing had been."""

import json

import pytest

from rollpacker.metrics.event_log import attempt_paths
from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS
from tests.e2e.invariants import assert_all_holds, assert_ended_as
from tests.e2e.launched import rows
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

NUM_PROMPTS = 40


def test_told_by_sigterm_alone_a_job_that_would_be_cancelled_is_back_in_the_queue(
    terminating_cluster, inputs, unbroken, tmp_path
):
    words = (f"cluster.partition={PREEMPTIBLE_PARTITIONS['CANCEL']}", "engine.num_engines=2")
    run = SubmittedRun(terminating_cluster, tmp_path / "run", *small_run(inputs, *words))
    run.wait_for_steps(3)
    run.freeze_engines()
    run.wait_until_frozen()
    terminating_cluster.submit("-N2", "--exclusive", "-p", "main", "-o", "/dev/null", script="sleep 1")
    run.wait_until(lambda: run.status().state == "preempted")
    run.thaw()
    assert run.status().finished_steps >= 3
    attempt = json.loads((run.run_dir / "jobs" / f"{run.job_id}.json").read_text())[0]
    assert attempt["interrupted_step_s"] > 0

    assert run.wait() == "COMPLETED", run.output()
    assert run.num_restarts() == 1
    assert run.status().state == "finished"
    assert "SIGTERM came, with 15 s to leave" in run.output()
    assert len(attempt_paths(run.run_dir)) == 2
    assert sorted(folder.name for folder in (run.run_dir / "logs").iterdir()) == ["attempt-000", "attempt-001"]
    assert {row["engine"] for row in rows(run.run_dir, "responses")} == {"engine-0", "engine-1"}  # one on each node
    assert_all_holds(run.run_dir, NUM_PROMPTS)
    assert_ended_as(run.run_dir, unbroken)
