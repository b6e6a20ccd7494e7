"""What a real Slurm makes of a worker that gives its node back while its run's job waits."""

import time

import pytest

from rollpacker.config.compose import compose
from rollpacker.launch.elastic_script import elastic_script
from slurm.mini_cluster import MiniCluster

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

PATIENCE_S = 120


def queue_of(cluster: MiniCluster, number: str) -> str:
    return cluster.run("squeue", "--noheader", "--array", f"--jobs={number}", "--format=%T %r", check=False).stdout


def until(cluster: MiniCluster, number: str, words: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while words not in (found := queue_of(cluster, number)):
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


def test_its_element_is_held_until_a_porter_releases_the_array(cluster, tmp_path):
    run = cluster.submit("-N1", "-o", "/dev/null", script="sleep 600")
    program = tmp_path / "program"
    program.write_text("#!/bin/bash\nexit 75\n")
    program.chmod(0o700)
    config = compose(
        [
            "experiment=e2e",
            "cluster=mini",
            "model.path=/shared/model",
            "data.path=/shared/prompts.jsonl",
            f"run.dir={tmp_path / 'run'}",
            "elastic=slurm",
            "elastic.max_workers=1",
            "elastic.job.partition=low",
            "elastic.job.cpus_per_worker=1",
            "elastic.job.num_elements=1",
            "elastic.job.patience_min=2",
        ]
    )
    script = elastic_script(config, job_id=run, name="workers", folder=tmp_path, python=[str(program)])
    number = cluster.submit(script=script)
    until(cluster, number, "PENDING JobHeldUser")
    cluster.run("scontrol", "release", number)
    until(cluster, number, "PENDING BeginTime")  # as any job that was requeued
