"""Slurm wants the nodes of a job: it leaves with a checkpoint, waits its turn, and goes on as if nothing had been."""

import pytest
import torch
from safetensors.torch import load_file

from rollpacker.metrics.event_log import attempt_paths
from rollpacker.runtime.replay import replay
from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS, MiniCluster
from tests.e2e.launched import LaunchedRun, batches, rows, trained_prompts
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

NUM_PROMPTS = 40


def small_run(inputs, *overrides):
    return [
        f"model.path={inputs / 'model'}",
        f"data.path={inputs / 'prompts.jsonl'}",
        "data.max_prompt_tokens=16",
        "reward=walk",
        "rollout.num_prompts=4",
        "rollout.num_responses=4",
        "rollout.max_response_tokens=48",
        "trainer.learning_rate=1e-3",
        "run.num_epochs=1",
        "run.checkpoint_every_steps=2",
        "system=verl",
        "engine.num_engines=1",
        *overrides,
    ]


def submit(cluster: MiniCluster, mode: str, run_dir, inputs, *overrides) -> SubmittedRun:
    """On one node, in the partition whose jobs are preempted in this way."""
    one_node = ["cluster.num_nodes=1", f"cluster.partition={PREEMPTIBLE_PARTITIONS[mode]}"]
    return SubmittedRun(cluster, run_dir, *small_run(inputs, *one_node, *overrides))


def take_all_nodes(cluster: MiniCluster) -> None:
    cluster.submit("-N2", "--exclusive", "-p", "main", "-o", "/dev/null", script="sleep 1")


def final_weights(run_dir):
    last = max((run_dir / "checkpoints").glob("step-*"))
    return load_file(last / "trainer" / "model" / "model.safetensors")


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


def assert_ended_as(run: SubmittedRun, unbroken: LaunchedRun) -> None:
    assert batches(run.run_dir) == batches(unbroken.run_dir)
    expected, actual = final_weights(unbroken.run_dir), final_weights(run.run_dir)
    assert expected.keys() == actual.keys()
    assert all(torch.equal(expected[name], actual[name]) for name in expected)


@pytest.fixture(scope="module")
def unbroken(inputs, tmp_path_factory):
    run = LaunchedRun(tmp_path_factory.mktemp("unbroken") / "run", *small_run(inputs))
    assert run.wait() == 0, run.output()
    return run


def test_broken_off_in_the_middle_of_a_rollout_and_requeued(cluster, inputs, unbroken, tmp_path):
    run = submit(cluster, "REQUEUE", tmp_path / "run", inputs)
    run.wait_for_steps(3)
    run.freeze_engines()
    take_all_nodes(cluster)
    run.wait_until(lambda: run.status().state == "departed")
    assert run.status().finished_steps >= 3
    assert "SIGURG came, with 15 s to leave" in run.status().reason
    assert_went_on_as_if_nothing_had_been(run)
    assert_ended_as(run, unbroken)
    assert not cluster.processes_on("node1")
    assert not cluster.processes_on("node2")


def test_told_by_sigterm_alone_a_job_that_would_be_cancelled_is_back_in_the_queue(
    terminating_cluster, inputs, unbroken, tmp_path
):
    run = submit(terminating_cluster, "CANCEL", tmp_path / "run", inputs)
    run.wait_for_steps(3)
    take_all_nodes(terminating_cluster)
    assert_went_on_as_if_nothing_had_been(run)
    assert "SIGTERM came, with 15 s to leave" in run.output()
    assert_ended_as(run, unbroken)
