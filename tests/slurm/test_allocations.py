"""What real accounting says of a run's job and its workers' array, one of whose elements is requeued."""

import time
from pathlib import Path

import pytest

from rollpacker.launch.allocations import accounted
from rollpacker.launch.submissions import Submission
from slurm.mini_cluster import MiniCluster
from slurm.mini_daemons import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


def test_each_attempt_of_a_run_and_its_workers_is_accounted_to_the_second(
    cluster: MiniCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = time.time()
    options = ("-o", "/dev/null", "--gpus-per-node=1", "-c1")
    job = cluster.submit(*options, script="sleep 600")
    again = '[ "$SLURM_RESTART_COUNT" ] || { scontrol requeue "${SLURM_ARRAY_JOB_ID}_0"; sleep 60; }'
    array = cluster.submit(*options, "--array=0-0", "-p", "low", "--requeue", script=f"{again}; sleep 600")
    (tmp_path / f"{job}.elastic").write_text(f"{array}\n{tmp_path}\n")
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    submission = Submission(job_id=job, folder=tmp_path, num_nodes=1, submitted_at=before)

    def states() -> list[tuple[str, str]]:
        return [(each.kind, each.state) for each in accounted(submission)]

    wait_until(lambda: states()[1:] == [("worker", "REQUEUED"), ("worker", "RUNNING")], what="a return", timeout_s=200)
    cluster.run("scancel", job, array)
    wait_until(
        lambda: states() == [("trainer", "CANCELLED"), ("worker", "REQUEUED"), ("worker", "CANCELLED")],
        what="the end of all, in accounts",
        timeout_s=120,
    )
    rows = accounted(submission)
    assert [each.job for each in rows] == [job, f"{array}_0", f"{array}_0"]
    for each in rows:
        assert each.source == "sacct"
        assert each.num_gpus == 1
        assert each.started_at_s is not None
        assert each.ended_at_s is not None
        assert each.elapsed_s == each.ended_at_s - each.started_at_s
    query = ("sacct", "-n", "-X", "-P", "-D", "-o", "ElapsedRaw", "-j", f"{job},{array}_0")
    assert sum(map(int, cluster.run(*query).stdout.split())) == sum(each.elapsed_s for each in rows)
