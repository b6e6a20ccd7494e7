"""Rollout workers beside a run on this machine: they join its Ray, generate, die, and leave with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from rollpacker.core.errors import EXIT_INTERRUPTED
from rollpacker.metrics.event_log import attempt_paths
from rollpacker.runtime.job.elastic_folder import ElasticFolder
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import LaunchedRun, num_recorded_steps, rows, small_run, trained_prompts
from tests.e2e.processes import MARK, ProcessesOfRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PATIENCE_S = 240


def elastic_run(run_dir, inputs, *overrides):
    words = small_run(
        inputs,
        "system=verl",
        "engine.num_engines=1",
        "engine.max_num_seqs=2",
        "elastic.max_workers=2",
        "elastic.least_stay_s=0",
        "elastic.seeding=off",
        "elastic.max_pending=1",
        "run.num_epochs=null",
        "run.num_steps=100000",
        *overrides,
    )
    return LaunchedRun(run_dir, *words)


class Worker:
    """A worker's process, and all that it starts, under the mark of the run."""

    def __init__(self, run: LaunchedRun) -> None:
        self.log = run.run_dir.with_suffix(f".worker-{time.monotonic_ns()}.log")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rollpacker.launch.worker", run.run_dir],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {MARK: run.mark, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text(errors="replace")


def until(condition, run, *workers):
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        said = "\n".join(worker.output() for worker in workers)
        assert run.process.poll() is None, f"{run.output()}\n{said}"
        assert time.monotonic() < deadline, f"{run.output()}\n{said}"
        time.sleep(0.1)


def members_of(run):
    return {row["engine"] for row in rows(run.run_dir, "responses")} - {"engine-0"}


def test_a_worker_serves_and_is_killed_another_comes_and_leaves_with_the_run(inputs, tmp_path):
    run = elastic_run(tmp_path / "run", inputs)
    first = Worker(run)
    until(lambda: num_recorded_steps(run.run_dir) >= 1 and members_of(run), run, first)
    of_first = members_of(run)
    os.kill(first.process.pid, signal.SIGKILL)  # its guardian ends Ray there
    steps = num_recorded_steps(run.run_dir)
    second = Worker(run)
    until(lambda: num_recorded_steps(run.run_dir) > steps and members_of(run) > of_first, run, second)
    run.process.send_signal(signal.SIGINT)
    assert run.wait() == EXIT_INTERRUPTED, run.output()
    assert second.process.wait(timeout=60) == 0, second.output()
    trained = trained_prompts(run.run_dir)
    assert len(trained) == len(set(trained))
    for log in attempt_paths(run.run_dir):
        assert log.exists()
    replay(run.run_dir)
    assert not ElasticFolder(run.run_dir).lease()
    assert not ProcessesOfRun(run.mark).alive()
