"""Jobs that end before their run does: by the time limit, by scancel."""

import json
import math
import time

import pytest

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.runtime.job.deadline import PreemptionDeadline
from rollpacker.runtime.rollout.replay import replay
from rollpacker.runtime.run.startup import STARTUP_FILE
from slurm.mini_cluster import MiniCluster
from tests.e2e.launched import num_recorded_steps, rows
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def endless_with_limit(inputs, unbroken, *overrides):
    """The limit is the fewest minutes with room to start, to begin a step, and for what a first checkpoint may take."""
    startup = json.loads((unbroken / "logs" / "attempt-000" / STARTUP_FILE).read_text())
    reserve_s = PreemptionDeadline(clock=time.time).reserve_s
    limit_min = math.ceil((3 * startup["total_s"] + 20 + reserve_s) / 60)
    return small_run(
        inputs,
        *("cluster.num_nodes=1", f"cluster.time_limit_min={limit_min}", "cluster.signal_lead_s=1"),
        *("run.num_epochs=null", "run.num_steps=100000"),
        "run.checkpoint_every_steps=0",  # after a first one less time is kept for the next, and the run leaves later
        *overrides,
    )


def assert_nothing_is_left(run: SubmittedRun, cluster: MiniCluster) -> None:
    run.wait_until(lambda: not any(cluster.processes_on(node) for node in cluster.shape.node_names))


def test_at_its_time_limit_a_run_leaves_and_goes_on_unless_no_step_fits_and_scancel_ends_it_for_good(
    cluster, inputs, unbroken, tmp_path
):
    (tmp_path / "futile").mkdir()
    run = SubmittedRun(cluster, tmp_path / "run", *endless_with_limit(inputs, unbroken))
    words = endless_with_limit(inputs, unbroken, "cluster.max_attempts_without_progress=1")
    futile = SubmittedRun(cluster, tmp_path / "futile" / "run", *words)
    futile.freeze_engines()  # in its first step, which is longer than the limit then
    run.wait_for_steps(1)
    run.freeze_engines()
    run.wait_until(lambda: run.status().state == "preempted")
    run.thaw()
    assert "the time limit" in run.status().reason

    assert futile.wait() == "FAILED", futile.output()
    assert futile.num_restarts() == 0
    assert futile.status().state == "failed"
    assert "the time limit came before the end of a step" in futile.status().reason
    assert "cluster.time_limit_min=" in futile.status().reason
    assert "Traceback" not in futile.output()

    run.wait_until(lambda: len(attempt_paths(run.run_dir)) == 2)
    assert run.num_restarts() == 1
    assert "The batch script sends the job back into the queue" in run.output()
    run.wait_for_steps(num_recorded_steps(run.run_dir) + 1)
    cluster.run("scancel", run.job_id)
    assert run.wait() == "CANCELLED"
    assert run.num_restarts() == 1
    steps = [row["step"] for row in rows(run.run_dir, "steps")]
    assert steps == list(range(len(steps)))
    replay(run.run_dir)
    assert_nothing_is_left(run, cluster)
