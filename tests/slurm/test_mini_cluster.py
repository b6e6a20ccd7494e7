"""The mini cluster is a real Slurm in all that the other tests need of it, and leaves nothing."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from slurm.mini_cluster import PREEMPTIBLE_PARTITIONS, MiniCluster
from slurm.mini_configuration import ClusterShape
from slurm.mini_daemons import start_daemon, wait_until
from slurm.mini_machine import ClusterUnavailableError, require_available
from tests.slurm.remains import processes_that_mention, require_nothing_left
from tests.slurm.requirement import require_slurm

ROOT = Path(__file__).parents[2]
ENDS = {"REQUEUE": "PENDING", "CANCEL": "PREEMPTED"}
SMALL = ClusterShape(nodes=1, accounting=False)


def test_all_nodes_are_idle_at_the_start(cluster: MiniCluster) -> None:
    assert cluster.run("sinfo", "-h", "-p", "main", "-o", "%D %t %c %m %G").stdout.split() == [
        "2", "idle", "8", "16000", "gpu:4",
    ]  # fmt: skip


def test_a_step_runs_on_two_hosts_that_know_each_other_by_name(cluster: MiniCluster) -> None:
    script = "hostname; getent hosts node1 node2"
    lines = cluster.run("srun", "-N2", "bash", "-c", script).stdout.split("\n")
    assert {"node1", "node2"} <= set(lines)
    assert len([line for line in lines if re.fullmatch(r"127\.0\.0\.1[12]\s+node[12]", line)]) == 4


def test_nodes_share_files_but_neither_memory_nor_processes(cluster: MiniCluster, tmp_path: Path) -> None:
    script = (
        f"DIR={tmp_path}; touch /dev/shm/$(hostname) $DIR/$(hostname); "
        "until [ -e $DIR/node1 -a -e $DIR/node2 ]; do sleep 0.05; done; ls $DIR; ls /dev/shm; ls /proc"
    )
    said = cluster.run("srun", "-N2", "--label", "bash", "-c", script).stdout
    first = [line.removeprefix("0: ") for line in said.splitlines() if line.startswith("0: ")]
    assert first[:3] == ["node1", "node2", "node1"]
    assert str(os.getpid()) not in first
    assert not Path("/dev/shm/node1").exists()  # noqa: S108


def test_every_node_has_scratch_of_its_own(cluster: MiniCluster) -> None:
    cluster.run("srun", "-N2", "bash", "-c", "hostname > $SLURM_TMPDIR/name")
    for node in cluster.shape.node_names:
        assert (cluster.scratch(node) / "name").read_text() == f"{node}\n"
    cluster.reset()
    assert not list(cluster.scratch("node1").iterdir())


def test_jobs_on_one_node_see_different_gpus(cluster: MiniCluster, tmp_path: Path) -> None:
    until_both_run = f"until [ $(ls {tmp_path} | wc -l) = 2 ]; do sleep 0.05; done"
    script = f"echo $CUDA_VISIBLE_DEVICES; {until_both_run}"
    jobs = [cluster.submit("-w", "node1", "--gres=gpu:2", "-o", tmp_path / "%j", script=script) for _ in range(2)]
    for job in jobs:
        cluster.wait_for_state(job, {"COMPLETED"})
    assert {(tmp_path / job).read_text() for job in jobs} == {"0,1\n", "2,3\n"}


def test_a_requeued_job_runs_again_under_its_id_and_accounting_knows_both_runs(
    cluster: MiniCluster, tmp_path: Path
) -> None:
    script = (
        'echo run $SLURM_RESTART_COUNT; [ "$SLURM_RESTART_COUNT" ] || { scontrol requeue $SLURM_JOB_ID; sleep 60; }'
    )
    job = cluster.submit("-o", tmp_path / "log", "--open-mode=append", script=script)
    cluster.wait_for_state(job, {"COMPLETED"})
    said = (tmp_path / "log").read_text().splitlines()
    assert [line for line in said if line.startswith("run")] == ["run", "run 1"]
    query = ("sacct", "-n", "-X", "-P", "-D", "-o", "state", "-j", job)
    wait_until(lambda: "COMPLETED" in cluster.run(*query).stdout, what="accounting", timeout_s=120)
    assert cluster.run(*query).stdout.split() == ["REQUEUED", "COMPLETED"]


def test_preempted_jobs_get_their_own_signal_and_are_requeued_or_cancelled_after_the_grace_time(
    tmp_path: Path,
) -> None:
    with _started(replace(SMALL, nodes=2, grace_time_s=5)) as cluster:
        jobs = {mode: _trap_signals(cluster, PREEMPTIBLE_PARTITIONS[mode], tmp_path / mode) for mode in ENDS}
        cluster.submit("-N2", "--exclusive", "-o", "/dev/null", script="sleep 600")
        for mode, job in jobs.items():
            cluster.wait_for_state(job, {ENDS[mode]}, timeout_s=120)
            assert (tmp_path / mode / "signal").read_text() == "URG\n"


def _trap_signals(cluster: MiniCluster, partition: str, folder: Path) -> str:
    """Start a job on one node that writes down the signal it gets and stays. Return its id."""
    folder.mkdir()
    (folder / "step.sh").write_text(
        'for name in URG TERM; do trap "echo $name > new; mv new signal; exit" $name; done\n'
        "touch ready; for i in {1..600}; do sleep 0.1; done"
    )
    options = ("-p", partition, "--exclusive", "--signal=URG@10", "-o", "log")
    job = cluster.submit(*options, script="srun bash step.sh; sleep 60", cwd=folder)
    wait_until((folder / "ready").exists, what="the step's start", timeout_s=120)
    return job


def test_a_killed_node_is_noticed_and_its_job_is_requeued() -> None:
    with _started(ClusterShape(nodes=2, accounting=False, node_timeout_s=2)) as cluster:
        job = cluster.submit("-w", "node1", "-o", "/dev/null", script="sleep 60")
        cluster.wait_for_state(job, {"RUNNING"})
        wait_until(lambda: bool(cluster.processes_on("node1")), what="the job's process", timeout_s=120)
        cluster.kill_node("node1")
        cluster.wait_for_state(job, {"PENDING"})
        assert cluster.job(job)["Restarts"] == "1"
        assert "down" in cluster.run("sinfo", "-h", "-n", "node1", "-p", "main", "-o", "%t").stdout
        cluster.reset()


def test_a_slurmd_that_crashes_under_a_job_is_counted_and_started_again(cluster: MiniCluster) -> None:
    before, job = cluster.num_crashes, cluster.submit("-w", "node1", "-o", "/dev/null", script="sleep 600")
    cluster.wait_for_state(job, {"RUNNING"})
    node = cluster._nodes["node1"]
    slurmd = next(each for each in node.descendants() if each.command.startswith("slurmd -D"))  # not one it forked
    os.kill(slurmd.pid, signal.SIGABRT)
    wait_until(lambda: node.has_crashed, what="the end of the node", timeout_s=120)
    cluster.reset()
    assert cluster.num_crashes == before + 1
    cluster.run("srun", "-w", "node1", "true")


def test_processes_of_a_job_are_found_on_their_node_even_when_it_has_lost_them(
    cluster: MiniCluster, tmp_path: Path
) -> None:
    lost = f"setsid bash -c 'touch {tmp_path}/lost; exec sleep 1234' >/dev/null 2>&1"
    cluster.run("srun", "-w", "node2", "bash", "-c", f"{lost} & until [ -e {tmp_path}/lost ]; do sleep 0.05; done")
    assert cluster.processes_on("node1") == []
    (orphan,) = cluster.processes_on("node2")
    assert "sleep 1234" in orphan.command
    cluster.reset()
    assert cluster.processes_on("node2") == []
    assert not Path(f"/proc/{orphan.pid}").exists()


def test_processes_that_end_while_they_are_looked_for_are_no_error(tmp_path: Path) -> None:
    require_slurm(SMALL)
    script = "for i in 1 2; do while :; do (true); done & done; wait"
    daemon = start_daemon("forks", ["bash", "-c", script], environment=os.environ, log=tmp_path / "log")
    try:
        wait_until(lambda: len(daemon.descendants()) >= 2, what="the loops", timeout_s=120)
        for _ in range(300):
            assert daemon.descendants()
    finally:
        daemon.kill()


def test_two_clusters_at_once_do_not_meet(cluster: MiniCluster) -> None:
    with _started(SMALL) as other:
        job = other.submit("-o", "/dev/null", "--job-name=elsewhere", script="sleep 60")
        other.wait_for_state(job, {"RUNNING"})
        assert "elsewhere" not in cluster.run("squeue", "-h", "-o", "%j").stdout
        assert [process.command for process in cluster.processes_on("node1")] == []
        assert other.environment["SLURM_CONF"] != cluster.environment["SLURM_CONF"]
        configuration = [each.run("scontrol", "show", "config").stdout.splitlines() for each in (cluster, other)]
        first_jobs = {line for lines in configuration for line in lines if line.startswith("FirstJobId")}
        assert len(first_jobs) == 2  # in the folder of a run, the job of one is none of the other's


def test_a_time_that_the_partition_forbids_waits_for_ever(cluster: MiniCluster) -> None:
    job = cluster.submit("-p", "short", "-t", "6", script="true")
    wait_until(lambda: cluster.job(job)["Reason"] == "PartitionTimeLimit", what="the reason", timeout_s=120)


@pytest.mark.parametrize("death", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_however_the_owner_ends_neither_a_process_nor_a_file_stays(death: signal.Signals) -> None:
    require_slurm(SMALL)
    command = [sys.executable, "-m", "slurm.mini_cluster", "start", "--nodes", "1", "--no-accounting"]
    owner = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().removeprefix("export SLURM_CONF=").strip()).parent
    assert processes_that_mention(folder)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    subprocess.run(["sbatch", "-o", "/dev/null", "--wrap", f"exec -a {folder} sleep 1234"], env=environment, check=True)
    owner.send_signal(death)
    owner.wait()
    owner.stdout.close()
    require_nothing_left(folder)


def test_an_owner_that_does_not_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(ClusterUnavailableError, match=r"user 1000.*only root.*sudo"):
        require_available(SMALL)


def test_missing_programs_are_named_with_the_script_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program, path: None)  # noqa: ARG005
    with pytest.raises(ClusterUnavailableError, match=r"no munged.*install_packages\.sh"):
        require_available(SMALL)


def _started(shape: ClusterShape) -> MiniCluster:
    require_slurm(shape)
    return MiniCluster(shape)
