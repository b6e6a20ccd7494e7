"""One Ray over two nodes of a real Slurm, in jobs that are started by hand."""

import json
import re
import shlex
import shutil
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from rollpacker.config.words import replaced
from rollpacker.runtime.run.startup import STARTUP_FILE
from tests.e2e.launched import UNHURRIED, batches, num_recorded_steps, rows, small_run
from tests.slurm.steps import RANK, RAYLET, ROOT, StepRun
from tests.slurm.submitted import SubmittedRun

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1200)]

ENVIRONMENT = "rollpacker.environments.process"
GOES_ON = "Its requests go to the other engines"
IN_TURNS = (
    *("system=tail-reward-planner", "reward=environment", "reward.function=null"),
    *("environment=gym", "environment.nodes=all", "environment.env=rollpacker.environments.delayed:Delayed"),
    "environment.arguments={env: 'rollpacker.environments.walk_turns:WalkTurns', median_s: 0.1}",
    "environment.pass_variables=[SLURMD_NODENAME]",  # so that their processes say where they are
)
LOST = "node2 is lost: Ray there has ended. The run goes on without it"


@pytest.fixture
def scratch():
    """A folder with a short name, where the nodes keep Ray's sessions."""
    folder = Path(tempfile.mkdtemp(prefix="s-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)  # of a test that failed the jobs may still write to it


def endless(inputs, scratch, *overrides):
    more = ("system=rollpacker", "run.num_epochs=null", "run.num_steps=100000", "backend.num_cpus=4", "cluster=mini")
    return small_run(inputs, *replaced((*more, *UNHURRIED), overrides), f"cluster.scratch=[{scratch}]")


def jobs_that_node2_does_not_join(cluster, inputs, scratch, folder):
    """Start one whose rank there says nothing, and one whose rank there has no folder for Ray."""
    silent = StepRun(
        cluster,
        folder / "silent",
        *endless(inputs, scratch, "backend.deadlines.start_s=60"),
        cpus=2,
        of_rank_1="sleep 1000",
        srun="--kill-on-bad-exit=1",
    )
    words = [*endless(inputs, "/proc"), f"run.dir={folder / 'unfit'}"]
    unfit = StepRun(
        cluster,
        folder / "unfit",
        *endless(inputs, scratch),
        cpus=2,
        of_rank_1=f"{sys.executable} -m rollpacker.cli train {' '.join(words)}",
    )
    return silent, unfit


def assert_failed(job: StepRun) -> None:
    assert job.wait() == "FAILED"
    job.assert_nothing_is_left()
    assert "Traceback" not in job.output()


def test_a_job_on_two_nodes_makes_the_batches_of_a_local_run(cluster, inputs, plain_run, scratch, tmp_path):
    placed = ("cluster=mini", f"cluster.scratch=[{scratch}]")
    plain = StepRun(cluster, tmp_path / "plain", *small_run(inputs, "system=verl", *placed))
    plain.wait_for_engines_on("node1", "node2")
    assert plain.wait() == "COMPLETED", plain.output()
    plain.assert_nothing_is_left()
    assert {row["engine"] for row in rows(plain.run_dir, "responses")} == {"engine-0", "engine-1"}
    assert list(scratch.iterdir()) == []
    assert "Traceback" not in plain.output()
    assert "raylet" not in plain.output()  # Ray has nothing to complain of

    (rendezvous,) = (plain.run_dir / "jobs").glob(f"{plain.job_id}.0.0.*")
    assert stat.S_IMODE(rendezvous.stat().st_mode) == 0o700
    assert stat.S_IMODE((rendezvous / "token").stat().st_mode) == 0o600
    startup = json.loads((plain.run_dir / "logs" / "attempt-000" / STARTUP_FILE).read_text())
    phases = [phase["phase"] for phase in startup["phases"]]
    assert "starting Ray on node1" in phases
    assert sum(phase["duration_s"] for phase in startup["phases"]) == pytest.approx(startup["total_s"], abs=0.1)

    assert batches(plain.run_dir) == batches(plain_run)


def test_a_job_goes_on_without_a_node_that_it_loses_ends_without_its_head_and_names_a_node_that_does_not_join(
    cluster, inputs, scratch, tmp_path
):
    silent, unfit = jobs_that_node2_does_not_join(cluster, inputs, scratch, tmp_path)
    silent.wait_for_output("waiting for node2")  # for a minute from its start on, while the others go on
    rankless = StepRun(cluster, tmp_path / "rankless", *endless(inputs, scratch), cpus=2)
    rayless = StepRun(cluster, tmp_path / "rayless", *endless(inputs, scratch, *IN_TURNS), cpus=2)
    assert_failed(unfit)
    assert "node2 (No folder for Ray's session: /proc is not writable" in unfit.output()
    assert "did not join Ray before" in unfit.output()

    rayless.wait_for_steps(1)
    assert {node for node, _ in rayless.processes(ENVIRONMENT)} == {"node1", "node2"}
    rayless.kill_9("node2", rayless.processes(RAYLET))
    rankless.wait_for_steps(1)
    rankless.kill_9("node2", rankless.processes(RANK))
    assert_failed(silent)
    assert "node2 did not join Ray within 60 s" in silent.output()
    assert re.search(rf"{silent.job_id}\.0\.0\.\d+/node2.log does not exist", silent.output().replace("\n", ""))
    for job in (rayless, rankless):
        job.wait_for_output(GOES_ON)
        job.wait_for_output(LOST)
        job.wait_for_steps(num_recorded_steps(job.run_dir) + 3)
        job.kill_9("node1", job.processes(RANK))

    for job in (rayless, rankless):
        assert_failed(job)
    assert "Ray has ended on node2" in rayless.output()
    assert "environments-1 is lost" in rayless.output()
    assert "Nobody has answered" in rayless.output()
    assert list(scratch.iterdir()) == []


def test_a_job_goes_on_without_an_engine_and_a_cancelled_one_and_one_whose_node_dies_end_and_leave_nothing(
    cluster, inputs, scratch, tmp_path
):
    on_gpus = ("engine.num_engines=2", "engine.resources.num_gpus=1")  # so that each node has room for one
    cancelled = StepRun(cluster, tmp_path / "cancelled", *endless(inputs, scratch, *on_gpus), cpus=2, gpus=1)
    nodeless = SubmittedRun(cluster, tmp_path / "nodeless", *endless(inputs, scratch))
    cancelled.wait_for_engines_on("node1", "node2")
    cancelled.wait_for_steps(1)
    cancelled.kill_9("node2", cancelled.engines())
    cancelled.wait_for_output(GOES_ON)
    cancelled.wait_for_steps(num_recorded_steps(cancelled.run_dir) + 3)
    nodeless.wait_for_steps(1)
    cluster.run("scancel", cancelled.job_id)
    assert cancelled.wait() == "CANCELLED"
    cancelled.assert_nothing_is_left()
    assert LOST not in cancelled.output()
    assert "Traceback" not in cancelled.output()
    assert len(list(scratch.iterdir())) == 2  # those of the other job

    cluster.kill_node("node2")
    nodeless.wait_until(lambda: nodeless.state() in {"PENDING", "FAILED", "NODE_FAIL"})
    nodeless.wait_until(lambda: not cluster.processes_on("node1"))
    assert "node2 is lost" in nodeless.output()
    assert len(list(scratch.iterdir())) == 1  # of the node that died


def test_in_one_step_on_one_node_a_second_command_goes_on_with_the_run(cluster, inputs, scratch, tmp_path):
    run_dir = tmp_path / "run"
    words = [f"run.dir={run_dir}", "cluster=mini", f"cluster.scratch=[{scratch}]", "engine.num_engines=1"]
    train = shlex.join([sys.executable, "-m", "rollpacker.cli", "train", *small_run(inputs, *words)])
    commands = f"{train} run.num_steps=1; {train} run.num_steps=2"
    step = ("srun", "-N1", "--ntasks-per-node=1", "-c4", "--mem=3000")
    outcome = cluster.run(*step, "bash", "-c", commands, check=False, timeout_s=600, cwd=ROOT)
    assert outcome.returncode == 0, outcome.stderr
    assert num_recorded_steps(run_dir) == 2
    assert list(scratch.iterdir()) == []
