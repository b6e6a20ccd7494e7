"""Rollout workers as elements of a real job array: they join, are preempted and replaced, and end with the run."""

import json
import time

import pytest

from rollpacker.launch.submissions import read_submission
from slurm.mini_cluster import MiniCluster
from tests.e2e.launched import UNHURRIED, num_recorded_steps, rows, trained_prompts
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import ENDED, SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]


def submit(cluster: MiniCluster, run_dir, inputs, *overrides) -> SubmittedRun:
    words = (
        "cluster.num_nodes=1",
        "cluster.cpus_per_node=2",
        "backend.num_cpus=4",
        "elastic=slurm",
        "elastic.max_workers=2",
        "elastic.min_workers=2",
        "elastic.least_stay_s=0",
        "elastic.seeding=off",
        "elastic.max_pending=1",
        "elastic.silence_s=20",
        "elastic.job.partition=low",
        "elastic.job.cpus_per_worker=6",  # so that the second worker has a node of its own
        "elastic.job.time_limit_min=60",
        "elastic.job.memory_gb_per_worker=3",
        "elastic.job.poll_interval_s=15",
        "run.num_epochs=2000",  # the test ends it
        *UNHURRIED,
    )
    return SubmittedRun(cluster, run_dir, *small_run(inputs, *words, *overrides))


def array_of(run: SubmittedRun) -> tuple[str, str]:
    """The number of the workers' array, and the folder in which they and the run meet."""
    submission = read_submission(run.run_dir)
    assert submission is not None
    number, folder = (submission.folder / f"{run.job_id}.elastic").read_text().split()
    return number, folder


def engines_of_workers(run: SubmittedRun) -> set[str]:
    return {
        row["engine"]
        for row in rows(run.run_dir, "responses")
        if row["engine"].startswith("e") and "_" in row["engine"]
    }


def wait_for_workers(run: SubmittedRun, num_workers: int) -> None:
    """Until so many workers, over the whole run, have generated responses that were trained."""

    def have_served() -> bool:
        assert run.state() not in ENDED, f"the job ended too early:\n{run.output()}"
        return len(engines_of_workers(run)) >= num_workers

    run.wait_until(have_served, interval_s=1)


def elements_in_queue(cluster: MiniCluster, number: str) -> list[str]:
    return cluster.run(
        "squeue", "--noheader", "--array", f"--jobs={number}", "--format=%i %T", check=False
    ).stdout.split()


def test_workers_join_another_replaces_a_preempted_one_and_none_outlives_the_run(cluster, inputs, tmp_path):
    run = submit(cluster, tmp_path / "run", inputs)
    number, folder = array_of(run)
    run.wait_for_steps(1)
    wait_for_workers(run, 2)
    steps = num_recorded_steps(run.run_dir)
    cluster.submit("-N1", "--exclusive", "-w", "node2", "-p", "main", "-o", "/dev/null", script="sleep 5")
    run.wait_for_steps(steps + 2)
    wait_for_workers(run, 3)
    cluster.run("scancel", run.job_id)
    run.wait_until(lambda: not elements_in_queue(cluster, number), timeout_s=150)
    assert json.loads((tmp_path / "run" / "elastic" / "wish.json").read_text())["num_workers"] >= 2
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained))
    deadline = time.monotonic() + 60
    while left := [*cluster.processes_on("node1"), *cluster.processes_on("node2")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    assert folder == str(tmp_path / "run" / "elastic")
