"""Environments on nodes of their own, which a run's job has beside those of its GPUs, on a real Slurm."""

import sys

import pytest

from rollpacker.runtime.rollout.replay import replay
from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS
from tests.e2e.launched import num_recorded_steps, rows, trained_prompts
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ENVIRONMENT = "rollpacker.environments.process"
PREEMPTIBLE = PREEMPTIBLE_PARTITIONS["REQUEUE"]
NUM_STEPS = 8
IN_TURNS = (
    *("reward=environment", "environment=gym", "environment.env=rollpacker.environments.delayed:Delayed"),
    "environment.arguments={env: 'rollpacker.environments.walk_turns:WalkTurns', median_s: 0.05}",
    *("cluster.num_nodes=1", f"cluster.partition={PREEMPTIBLE}"),
    *(
        "cluster.environment_nodes.num_nodes=1",
        "cluster.environment_nodes.cpus_per_node=2",
        "cluster.environment_nodes.memory_gb_per_node=3",
    ),
    *("engine.max_num_seqs=8", "run.checkpoint_every_steps=0", f"run.num_steps={NUM_STEPS}"),
)


def test_they_start_are_preempted_and_come_back_with_the_run(cluster, inputs, tmp_path):
    run = SubmittedRun(cluster, tmp_path / "run", *small_run(inputs, *IN_TURNS))
    run.wait_for_steps(1)
    places = [node for node in ("node1", "node2") for each in cluster.processes_on(node) if ENVIRONMENT in each.command]
    assert places
    assert len(set(places)) == 1
    (trainer,) = {"node1", "node2"} - set(places)
    assert any("rollpacker" in each.command for each in cluster.processes_on(trainer))

    run.freeze_engines()
    cluster.submit("-N2", "--exclusive", "-p", "main", "-o", "/dev/null", script="sleep 1")
    run.wait_until(lambda: run.status().state == "preempted")
    run.thaw()
    assert num_recorded_steps(run.run_dir) < NUM_STEPS
    assert run.wait() == "COMPLETED", run.output()
    assert run.num_restarts() == 1
    assert len(rows(run.run_dir, "steps")) == NUM_STEPS
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained))
    replay(run.run_dir)
    assert "Traceback" not in run.output()
    for node in ("node1", "node2"):
        assert not cluster.processes_on(node)

    said = cluster.run(sys.executable, "-m", "rollpacker.cli", "jobs", str(run.run_dir)).stdout
    assert f"{run.job_id}" in said
    assert "finished" in said
