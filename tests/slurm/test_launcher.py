"""`hydra/launcher=slurm` against a real slurmctld.

The points are modelled runs of two steps: what is tried is launching.
"""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.compose import compose
from rollpacker.config.words import replaced
from rollpacker.launch.sbatch_script import sbatch_text
from rollpacker.launch.shape import job_shape
from rollpacker.launch.submissions import Submission, read_submission
from rollpacker.runtime.run.status import read_status
from slurm.mini_cluster import MiniCluster
from slurm.mini_daemons import wait_until

pytestmark = pytest.mark.timeout(900)

POINT = [
    "hydra/launcher=slurm",
    "hydra.launcher.poll_interval_s=0.3",
    "cluster=mini",
    "cluster.num_nodes=1",
    "cluster.cpus_per_node=1",
    "cluster.memory_gb_per_node=0.5",
    "backend=sim",
    "model=qwen2.5-7b",
    "rollout.num_prompts=8",
    "run.num_steps=2",
]


class Launch:
    """`rollpacker train -m` in a process of its own, on the cluster's login node."""

    def __init__(self, cluster: MiniCluster, folder: Path, *words: str, path: str | None = None) -> None:
        environment = dict(cluster.environment) | {"COLUMNS": "200"} | ({"PATH": path} if path else {})
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rollpacker.cli", "train", "-m", *replaced(POINT, words)],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, start: str) -> str:
        """What it prints up to the first line that begins like this; all, where there is none."""
        assert self.process.stdout is not None
        lines = []
        while line := self.process.stdout.readline():
            lines.append(line)
            if line.startswith(start):
                break
        return "".join(lines)

    def end(self) -> tuple[int, str]:
        """Its exit code and all that it printed."""
        output, _ = self.process.communicate(timeout=240)
        return self.process.returncode, output


@pytest.fixture
def here(cluster: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory in which this process, too, is on the cluster's login node."""
    monkeypatch.chdir(tmp_path)
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    return tmp_path


def _submission(run_dir: Path) -> Submission:
    submission = read_submission(run_dir)
    assert submission is not None
    return submission


def _accounted(cluster: MiniCluster, job_id: str) -> str:
    """State and exit code as accounting has them, once it has."""
    for _ in range(600):
        said = cluster.run("sacct", "-n", "-X", "-P", "-j", job_id, "-o", "State,ExitCode").stdout.strip()
        if said and not said.startswith(("RUNNING", "PENDING")):
            return said
        time.sleep(0.1)
    raise AssertionError(f"accounting says of job {job_id}: {said}")


def _num_jobs(cluster: MiniCluster) -> int:
    return len(cluster.run("squeue", "--noheader", "--states=all", "--array").stdout.splitlines())


def test_points_of_equal_shapes_share_an_array_and_what_has_finished_is_skipped(
    cluster: MiniCluster, here: Path
) -> None:
    words = ["cluster.num_nodes=1,2", "run.dir=sweep/${cluster.num_nodes}-${run.seed}"]
    code, output = Launch(cluster, here, *words, "run.seed=0,1", "hydra.launcher.array_parallelism=2").end()
    assert code == 0, output
    dirs = [here / f"sweep/{nodes}-{seed}" for nodes in (1, 2) for seed in (0, 1)]
    assert [read_status(run_dir).state for run_dir in dirs] == ["finished"] * 4
    submissions = [_submission(run_dir) for run_dir in dirs]
    arrays = [submission.job_id.partition("_")[0] for submission in submissions]
    assert arrays[0] == arrays[1] != arrays[2] == arrays[3]
    assert [submission.num_nodes for submission in submissions] == [1, 1, 2, 2]
    assert "#SBATCH --array=0-1%2\n" in submissions[0].script.read_text()
    assert _accounted(cluster, submissions[3].job_id) == "COMPLETED|0:0"
    assert "2 steps in" in submissions[3].logs[0].read_text()
    num_jobs = _num_jobs(cluster)

    code, output = Launch(cluster, here, *words, "run.seed=0,1").end()
    assert code == 0, output
    assert output.count("has finished: skipped") == 4
    assert _num_jobs(cluster) == num_jobs
    assert [_submission(run_dir) for run_dir in dirs] == submissions


def test_a_point_that_fails_is_failed_in_slurm_and_the_multirun_says_which_and_why(
    cluster: MiniCluster, here: Path
) -> None:
    lengths = "prompt,length_tokens\n" + "".join(f"p{prompt},{8 + prompt}\n" for prompt in range(64) for _ in range(8))
    for seed in (0, 1):
        (here / f"lengths-{seed}.csv").write_text(lengths)
    words = [
        "workload.lengths=lengths-${run.seed}.csv",
        "run.dir=sweep/${run.seed}",
        "run.seed=0,1",
        "cluster.setup=['if [[ $SLURM_ARRAY_TASK_ID == 1 ]]; then mv lengths-1.csv moved.csv; fi']",
    ]
    code, output = Launch(cluster, here, *words).end()
    assert code == 1, output
    assert "1 of 2 points did not finish." in output
    submission = _submission(here / "sweep/1")
    assert f"point 1 (run.seed=1) failed (job {submission.job_id}, FAILED, exit code 2): " in output
    assert str(submission.logs[0]) in output
    assert "lengths-1.csv" in output.partition("ends with")[2]
    assert "Traceback" not in submission.logs[0].read_text()
    assert _accounted(cluster, submission.job_id) == "FAILED|2:0"
    assert _accounted(cluster, _submission(here / "sweep/0").job_id) == "COMPLETED|0:0"

    (here / "moved.csv").rename(here / "lengths-1.csv")
    code, output = Launch(cluster, here, *words).end()  # now a job of its own, which is no element of an array
    assert code == 0, output
    assert "point 0 (run.seed=0) has finished: skipped" in output
    assert read_status(here / "sweep/1").state == "finished"


def test_a_detached_launch_leaves_its_jobs_which_are_not_submitted_twice(cluster: MiniCluster, here: Path) -> None:
    words = ["run.dir=sweep/${run.seed}", "run.seed=0,1", "cluster.sbatch={begin: now+1hour}"]
    code, output = Launch(cluster, here, *words, "hydra.launcher.detach=true").end()
    assert code == 0, output
    job_ids = [_submission(here / f"sweep/{seed}").job_id for seed in (0, 1)]
    array = job_ids[0].partition("_")[0]
    assert cluster.job(job_ids[0])["JobName"] == "rollpacker-sweep"
    assert job_ids == [f"{array}_0", f"{array}_1"]
    assert f"scancel {array}" in output
    assert "rollpacker jobs sweep" in output

    waiting = Launch(cluster, here, *words)
    assert waiting.process.stdout is not None
    printed = [waiting.process.stdout.readline() for _ in range(3)]
    waiting.process.send_signal(signal.SIGINT)
    code, output = waiting.end()
    output = "".join(printed) + output
    assert code == 130, output
    assert output.count("not submitted again") == 2
    assert "the jobs stay" in output
    assert cluster.run("squeue", "--noheader", "--array", "--format=%T").stdout.split() == ["PENDING", "PENDING"]

    cluster.run("scancel", f"{array}_1")
    code, output = Launch(cluster, here, *words, "hydra.launcher.detach=true").end()
    assert code == 0, output
    assert output.count("not submitted again") == 1
    assert _submission(here / "sweep/0").job_id == f"{array}_0"
    assert _submission(here / "sweep/1").job_id not in job_ids
    cluster.run("scancel", "--user=root")


def test_a_point_whose_job_was_cancelled_is_submitted_again_although_that_job_ends_slowly(
    cluster: MiniCluster, here: Path
) -> None:
    ends_slowly = 'if rm slow; then trap "" TERM; touch ready; until [[ -e go ]]; do sleep 0.2; done; fi'
    words = ["run.dir=sweep/only", f"cluster.setup=['{ends_slowly}']", "hydra.launcher.detach=true"]
    (here / "slow").touch()
    code, output = Launch(cluster, here, *words).end()
    assert code == 0, output
    first = _submission(here / "sweep/only").job_id
    wait_until((here / "ready").exists, what="the job's start", timeout_s=120)
    cluster.run("scancel", first)
    again = Launch(cluster, here, *words)
    printed = again.read_until("Waiting until jobs that are ending")
    (here / "go").touch()
    assert again.process.stdout is not None
    printed += again.process.stdout.read()
    assert again.process.wait(240) == 0, printed
    assert "Waiting until jobs that are ending" in printed
    second = _submission(here / "sweep/only").job_id
    assert second != first, printed
    assert cluster.wait_for_state(second, {"COMPLETED", "FAILED"}) == "COMPLETED"


def test_sbatch_alone_is_enough_to_submit(cluster: MiniCluster, here: Path) -> None:
    programs = here / "bin"
    programs.mkdir()
    found = cluster.run("which", "sbatch").stdout.strip()
    (programs / "sbatch").symlink_to(found)
    code, output = Launch(cluster, here, "run.dir=sweep/only", path=str(programs)).end()
    assert code == 0, output
    job_id = _submission(here / "sweep/only").job_id
    assert f"scancel {job_id}" in output
    assert cluster.wait_for_state(job_id, {"COMPLETED", "FAILED"}) == "COMPLETED"


def test_where_jobs_get_no_environment_the_ranks_get_what_the_script_exports(cluster: MiniCluster, here: Path) -> None:
    words = [word for word in POINT if not word.startswith("hydra")]
    own = ["cluster.environment={GREETING: hello}", "cluster.sbatch={export: NONE}"]
    shape = job_shape(compose([*words, *own]))
    script = sbatch_text(shape, name="x", folder=here, python=["bash", "-c", "env"])
    job_id = cluster.submit(script=script, cwd=here)
    assert cluster.wait_for_state(job_id, {"COMPLETED", "FAILED"}) == "COMPLETED"
    seen = (here / f"{job_id}_0_log.out").read_text().splitlines()
    assert "GREETING=hello" in seen
    assert f"ROLLPACKER_REQUEUE_FILE={here}/{job_id}.requeue" in seen


def test_a_dry_run_prints_scripts_and_topology_and_touches_nothing(
    cluster: MiniCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    num_jobs = _num_jobs(cluster)
    words = ["cluster.num_nodes=1,2", "cluster.partition=low", "hydra.launcher.dry_run=true"]
    assert main(["train", "-m", *replaced(POINT, words)]) == 0
    printed = capsys.readouterr().out
    assert printed.count("#!/bin/bash") == 2
    assert printed.count("#SBATCH --partition=low\n") == 2
    assert "#   node 0: driver, which models all actors\n#   node 1: nothing\n" in printed
    assert not list(here.iterdir())
    assert _num_jobs(cluster) == num_jobs


def test_bad_input_is_refused_before_anything_is_submitted(
    cluster: MiniCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    complaints = {
        "cluster.partition=lov": "Write cluster.partition=low\n",
        "cluster.gpus_per_node=8": "Its largest node has 4 GPUs.",
        "cluster.cpus_per_node=9": "Its largest node has 8 CPUs.",
        "cluster.memory_gb_per_node=20": "Its largest node has 16000 MiB.",
        "cluster.num_nodes=3": "Partition `main` has 2 of them.",
        "cluster.partition=short cluster.time_limit_min=30": "It allows 5 minutes.",
        "cluster.time_limit_min=2": "cluster.signal_lead_s=120",
        "cluster.constraint=a100": "No node of this Slurm has features.",
        "cluster.gpu_type=h800": "Leave cluster.gpu_type out",
        "cluster.has_shared_files=false run.dir=/run/sweep": "cluster.has_shared_files=true",
        "hydra.launcher.container=image.sif": "image.sif",
    }
    num_jobs = _num_jobs(cluster)
    for words, complaint in complaints.items():
        assert main(["train", "-m", *replaced(POINT, words.split())]) == 2, words
        assert complaint in capsys.readouterr().err, words
    assert not list(here.iterdir())
    assert not Path("/run/sweep").exists()
    assert _num_jobs(cluster) == num_jobs


def test_all_mistakes_of_all_points_are_said_at_once(
    cluster: MiniCluster, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cluster.partition=lov,main", "cluster.gpus_per_node=0,9", "rollout.num_prompts=50000"]
    assert main(["train", "-m", *replaced(POINT, words)]) == 2
    told = capsys.readouterr().err
    assert told.count("cluster.partition=lov is not a partition") == 1
    assert told.count("cluster.gpus_per_node=9 is more than a node of partition `main` has.") == 1
    assert "rollout.num_prompts=50000" in told
