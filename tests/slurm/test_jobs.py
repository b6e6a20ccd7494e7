"""`rollpacker jobs` and `rollpacker doctor` on a real Slurm."""

from __future__ import annotations

import re
import shlex
import sys
import time
from pathlib import Path

from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.runtime.run.status import RunStatus, write_status
from slurm.mini_cluster import MiniCluster

ROOT = Path(__file__).parents[2]
ROLLPACKER = shlex.join([sys.executable, "-m", "rollpacker.cli"])


class Runs:
    """Runs whose jobs are real, and do what a test wants instead of training."""

    def __init__(self, cluster: MiniCluster, folder: Path) -> None:
        self._cluster = cluster
        self.folder = folder
        (folder / "jobs").mkdir(parents=True)

    def submit(self, name: str, *options: str, script: str, element: str = "") -> str:
        log = self.folder / "jobs" / ("%A_%a_0_log.out" if element else "%j_0_log.out")
        job_id = self._cluster.submit(*options, f"--output={log}", script=script, cwd=ROOT) + element
        self.was_submitted(name, job_id)
        return job_id

    def was_submitted(self, name: str, job_id: str, cluster: str | None = None) -> None:
        write_submission(
            self.folder / name,
            Submission(
                job_id=job_id,
                folder=self.folder / "jobs",
                num_nodes=1,
                submitted_at=time.time() - 1,
                cluster=cluster,
            ),
        )

    def says_it_runs(self, name: str) -> None:
        status = RunStatus(
            state="running",
            attempt=0,
            finished_steps=3,
            num_steps=10,
            reason="",
            job_id=None,
            host="node1",
            updated_at=time.time() + 1,
            processor_s=0.0,
            num_gpus=0,
        )
        write_status(self.folder / name, status)

    def shown(self, *variables: str) -> str:
        command = f"{ROLLPACKER} jobs {self.folder}"
        return self._cluster.run("env", "COLUMNS=120", *variables, "bash", "-c", command, cwd=ROOT).stdout


def _line(shown: str, name: str) -> list[str]:
    return next(line for line in shown.splitlines() if line.startswith(f"{name} ")).split()


def _reason(shown: str, word: str, name: str) -> str:
    lines = shown.splitlines()
    where = next(n for n, line in enumerate(lines) if line.startswith(f"{word} ") and line.endswith(f"/{name}"))
    return lines[where + 1].strip()


def test_jobs_shows_what_slurm_knows_of_every_run(cluster: MiniCluster, tmp_path: Path) -> None:
    runs = Runs(cluster, tmp_path / "runs")
    running = runs.submit("a-runs", "-N2", "--mem=100", script="sleep 600")
    array = runs.submit(
        "b-fails",
        "--array=0-1",
        "--mem=100",
        script="echo \"ModuleNotFoundError: No module named 'rollpacker'\"; exit 3",
        element="_0",
    )
    killed = runs.submit("c-dies", "--mem=100", script="kill -9 $$")
    requeued = runs.submit("d-again", "--partition=low", "--requeue", "--mem=100", script="sleep 600")
    model = "backend=sim model=qwen2.5-7b hardware=h800 cluster=mini run.num_steps=2 run.progress=none"
    trained = runs.submit("e-ends", "--mem=2000", script=f"{ROLLPACKER} train {model} run.dir={runs.folder}/e-ends")
    waiting = runs.submit("f-waits", "-N2", "--exclusive", script="sleep 600")
    cancelled = runs.submit("g-stops", "--hold", "--mem=100", script="sleep 600")
    cluster.wait_for_state(running, ["RUNNING"])
    cluster.wait_for_state(requeued, ["RUNNING"])
    cluster.run("scontrol", "requeuehold", requeued)
    cluster.run("scancel", cancelled)
    for job_id in (array, killed, trained):
        cluster.wait_for_state(job_id, ["FAILED", "COMPLETED"])
    cluster.wait_for_state(requeued, ["PENDING", "REQUEUE_HOLD"])
    runs.says_it_runs("a-runs")
    runs.says_it_runs("c-dies")

    shown = runs.shown()

    assert shown.splitlines()[0].startswith("7 runs: 1 running, 1 waiting, 1 requeued, 1 finished, 1 failed, 1 died")
    assert _line(shown, "a-runs")[1:5] == ["running", running, "node[1-2]", "3/10"]
    assert _line(shown, "b-fails")[1:3] == ["failed", array]
    assert _line(shown, "c-dies")[1:3] == ["died", killed]
    assert _line(shown, "d-again")[-1] == "2", "it is about to try for the second time"
    assert _line(shown, "e-ends")[1:3] == ["finished", trained]
    assert float(_line(shown, "e-ends")[5]) > 0, "the reward of its last step"
    assert _line(shown, "f-waits")[1:4] == ["waiting", waiting, "2"]
    assert _reason(shown, "failed", "b-fails") == "ModuleNotFoundError: No module named 'rollpacker'"
    assert _reason(shown, "died", "c-dies") == "its job was killed by signal 9"
    assert _reason(shown, "waiting", "f-waits").endswith(("(Resources)", "(Priority)"))
    assert _reason(shown, "cancelled", "g-stops") == "its job was cancelled (CANCELLED)"


def test_a_job_is_found_on_the_cluster_that_it_was_submitted_to_whatever_the_shell_names(
    cluster: MiniCluster, tmp_path: Path
) -> None:
    runs = Runs(cluster, tmp_path / "runs")
    job_id = runs.submit("a-shell", "--mem=100", script="sleep 600")
    runs.was_submitted("b-own", job_id, cluster="")
    runs.was_submitted("c-named", job_id, cluster="mini")
    cluster.wait_for_state(job_id, ["RUNNING"])

    shown = runs.shown("SLURM_CLUSTERS=elsewhere")

    assert [_line(shown, name)[2] for name in ("b-own", "c-named")] == [job_id] * 2
    assert [_line(shown, name)[3] for name in ("a-shell", "b-own", "c-named")] == ["1", "node1", "node1"]
    assert "elsewhere" in shown, "why nothing is known of the first"


def _plain(text: str) -> str:
    """Without the columns of the lines."""
    return re.sub(" +", " ", text)


def test_the_doctor_finds_no_problem_on_the_login_node_nor_on_the_nodes(cluster: MiniCluster, tmp_path: Path) -> None:
    doctor = f"env COLUMNS=120 {ROLLPACKER} doctor cluster=mini cluster.partition=main"

    before = _plain(cluster.run("bash", "-c", f"{doctor} run.dir={tmp_path}/run", cwd=ROOT).stdout)
    within = cluster.submit(
        *("-N2", "--mem=3000", "--gres=gpu:2", f"--output={tmp_path}/within.out"),
        script=f"{doctor} cluster.gpus_per_node=2 run.dir={tmp_path}/run && echo it is well\n"
        f"srun --ntasks-per-node=1 {doctor} run.dir=/dev/shm/run",
        cwd=ROOT,
    )
    cluster.wait_for_state(within, ["FAILED", "COMPLETED"])

    assert "outside any job" in before
    assert "ok partition main is UP, 2 of 2 nodes in service" in before
    shared, own = _plain((tmp_path / "within.out").read_text()).split("it is well\n")
    assert f"job {within} on node[1-2], checked from node1" in shared
    assert "ok shared files run.dir is seen and written by all 2 nodes" in shared
    assert "ok memory each node: 3,000 MB on this node" in shared
    assert "GPUs each node: 2 given" in shared
    assert "ok address node1 is 127.0.0.11" in shared
    assert "problem shared files node2 cannot see a file that was just written to run.dir" in own
    assert own.count("ok where") == 1, "of the tasks of a step one speaks"
    assert [path.name for path in tmp_path.iterdir()] == ["within.out"]
