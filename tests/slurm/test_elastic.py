"""Rollout workers as elements of a real job array: they join, are preempted and replaced, and end with the run."""

import json
import sys
import time

import pytest

from rollpacker.config.words import replaced
from rollpacker.launch.submissions import read_submission
from rollpacker.runtime.job.elastic_folder import LEASE_WAIT_S
from slurm.mini_cluster import MiniCluster
from tests.e2e.launched import UNHURRIED, num_recorded_steps, rows, trained_prompts
from tests.slurm.calls import CountedCalls
from tests.slurm.run_in_job import ENDED
from tests.slurm.small_runs import small_run
from tests.slurm.submitted import SubmittedRun

POLL_S = 15

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
        f"elastic.job.poll_interval_s={POLL_S}",
        "elastic.job.num_elements=2",
        "run.num_epochs=null",
        "run.num_steps=100000",  # the test ends it
        *UNHURRIED,
    )
    return SubmittedRun(cluster, run_dir, *small_run(inputs, *replaced(words, overrides)))


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


def wait_for_workers(run: SubmittedRun, *names: str) -> None:
    """Until engines of these have generated responses that were trained."""

    def have_served() -> bool:
        assert run.state() not in ENDED, f"the job ended too early:\n{run.output()}"
        return engines_of_workers(run) >= {f"{name}.0" for name in names}

    run.wait_until(have_served, interval_s=1)


def elements_in_queue(cluster: MiniCluster, number: str) -> list[str]:
    return cluster.run(
        "squeue", "--noheader", "--array", f"--jobs={number}", "--format=%i %T", check=False
    ).stdout.split()


def accounted_by_slurm(cluster: MiniCluster, jobs: str) -> list[tuple[str, str, int]]:
    """Job, state and seconds of every attempt that was given something."""
    words = ("--noheader", "--duplicates", "--allocations", "--parsable2", f"--jobs={jobs}")
    lines = cluster.run("sacct", *words, "--format=JobID,State,ElapsedRaw,Start").stdout.splitlines()
    given = [line.split("|") for line in lines]
    return sorted((job, state.split()[0], int(elapsed)) for job, state, elapsed, start in given if start != "Unknown")


def test_workers_join_a_preempted_one_comes_back_none_outlives_the_run_and_accounts_are_those_of_slurm(
    cluster, inputs, tmp_path
):
    calls = CountedCalls(cluster, tmp_path / "counted")
    began = time.monotonic()
    run = submit(cluster, tmp_path / "run", inputs)
    number, folder = array_of(run)
    run.wait_for_steps(1)
    wait_for_workers(run, f"e{number}_0-r0", f"e{number}_1-r0")
    steps = num_recorded_steps(run.run_dir)
    cluster.submit("-N1", "--exclusive", "-w", "node2", "-p", "main", "-o", "/dev/null", script="sleep 1")
    run.wait_for_steps(steps + 2)
    wait_for_workers(run, f"e{number}_1-r1")
    cancelled = time.monotonic()
    cluster.run("scancel", run.job_id)
    run.wait_until(lambda: not elements_in_queue(cluster, number), interval_s=1)
    assert time.monotonic() - cancelled < LEASE_WAIT_S
    lasted_s = time.monotonic() - began
    assert json.loads((tmp_path / "run" / "elastic" / "wish.json").read_text())["num_workers"] >= 2
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained))
    deadline = time.monotonic() + 60
    while left := [*cluster.processes_on("node1"), *cluster.processes_on("node2")]:
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
    assert folder == str(tmp_path / "run" / "elastic")

    cluster.run(sys.executable, "-m", "rollpacker.cli", "report", str(run.run_dir), cwd=tmp_path)
    accounted = rows(run.run_dir, "allocations")
    told = sorted((row["job"], row["state"], round(row["elapsed_s"])) for row in accounted)
    assert told == accounted_by_slurm(cluster, f"{run.job_id},{number}")
    assert {row["source"] for row in accounted} == {"sacct"}
    states = [row["state"] for row in accounted]
    assert len(states) == 4
    assert len({"REQUEUED", "PREEMPTED"}.intersection(states)) == 1  # the former if it has left within its grace
    assert [row["tokens_lost"] for row in rows(run.run_dir, "workers") if row["worker"] == f"e{number}_1-r0"] == [0]
    asked = calls.by_job()
    assert 4 <= asked[run.job_id] <= 4 + 2 * lasted_s / POLL_S
    assert all(asked[f"{number}_{element}"] <= 5 * 2 for element in (0, 1)), asked
