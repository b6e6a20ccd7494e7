"""What Slurm's accounting says of a run's job and of its workers, and what is said where there is none."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from rollpacker.launch.allocations import Prices, RunJobs, estimated, jobs_of, merged, parse_accounting
from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.runtime.job.attempts import Attempt
from rollpacker.runtime.job.elastic_folder import ElasticFolder

SACCT = """\
12_0|13|PREEMPTED|low|node2|1795267600|1795267612|1795267712|100|billing=3,cpu=6,gres/gpu=2,mem=3G,node=1
12_[1-7%2]|12|PENDING|low|None assigned|1795267600|Unknown|Unknown|0|
12_0|13|CANCELLED by 1000|low|node1|1795267712|1795267832|1795267892|60|billing=3,cpu=6,gres/gpu:a100=2,mem=3G,node=1
11|11|RUNNING|main|node1|1795267500|1795267501|Unknown|400|billing=8,cpu=8,gres/gpu=4,node=1
"""
JOBS = RunJobs(own=frozenset({"11"}), arrays=frozenset({"12"}), since=1795267500.0)


def test_every_attempt_of_a_job_is_an_allocation_of_its_own_and_waiting_elements_are_none():
    trainer, first, second = parse_accounting(SACCT, JOBS)
    assert [each.kind for each in (trainer, first, second)] == ["trainer", "worker", "worker"]
    assert (trainer.state, trainer.ended_at_s, trainer.num_gpus) == ("RUNNING", None, 4)
    assert (first.job, first.state, first.elapsed_s, first.num_gpus) == ("12_0", "PREEMPTED", 100, 2)
    assert (second.state, second.nodes, second.started_at_s, second.num_gpus) == ("CANCELLED", "node1", 1795267832, 2)
    assert first.billing == pytest.approx(3 * 100 / 3600)


def test_other_elements_of_a_runs_array_and_older_jobs_of_the_same_number_are_not_its_own():
    rows = """\
17_0|18|COMPLETED|main|node1|1795267500|1795267501|1795267601|100|gres/gpu=4,node=1
17_1|17|COMPLETED|main|node1|1795267500|1795267501|1795267601|100|gres/gpu=4,node=1
19+0|19|COMPLETED|main|node1|1795267500|1795267501|1795267601|100|gres/gpu=4,node=1
19+1|20|COMPLETED|cpu|node2|1795267500|1795267501|1795267601|100|cpu=4,node=1
19|19|COMPLETED|main|node1|1755267500|1755267501|1755267601|100|gres/gpu=4,node=1
"""
    of_run = RunJobs(own=frozenset({"17", "19"}), arrays=frozenset(), since=1795267500.0)
    assert [each.job for each in parse_accounting(rows, of_run)] == ["17_1", "19+0", "19+1"]


def test_a_price_is_of_a_gpu_hour_and_without_one_there_is_no_cost():
    trainer, first, _ = parse_accounting(SACCT, JOBS)
    prices = Prices(trainer=None, worker=3.6)
    assert first.row(prices)["gpu_seconds"] == 200
    assert first.row(prices)["cost"] == pytest.approx(0.2)
    assert trainer.row(prices)["cost"] is None


def test_all_jobs_of_a_run_and_their_arrays_are_found_beside_the_scripts_of_all_sweeps_and_in_the_runs_folder(
    tmp_path: Path,
):
    run_dir, scripts = tmp_path / "run", tmp_path / ".submitit"
    scripts.mkdir()
    assert jobs_of(run_dir) is None
    for job, array, name in (("11_0", "12", "run"), ("11_1", "13", "other"), ("21", "22", "run")):
        (scripts / f"{job}.elastic").write_text(f"{array}\n{ElasticFolder(tmp_path / name).path}\n")
    (scripts / "23.elastic").write_text("")
    for sweep, job, array in (("first", "6", "7"), ("second", "8", "14")):
        (tmp_path / sweep).mkdir()
        (tmp_path / sweep / f"{job}.elastic").write_text(f"{array}\n{ElasticFolder(run_dir).path}\n")
        write_submission(run_dir, Submission(job_id=job, folder=tmp_path / sweep, num_nodes=1, submitted_at=80_000.0))
    starts = [Attempt(restart_count=0, number=0, first_step=0, began_at=70_000.0)]
    (run_dir / "jobs").mkdir(parents=True)
    (run_dir / "jobs" / "9.json").write_text(json.dumps([asdict(start) for start in starts]))
    (run_dir / "jobs" / "10.json").write_text("[{]")
    write_submission(run_dir, Submission(job_id="21", folder=scripts, num_nodes=1, submitted_at=90_000.0))
    jobs = jobs_of(run_dir)
    assert jobs is not None
    assert jobs.own == {"6", "8", "9", "10", "11_0", "21"}
    assert jobs.arrays == {"7", "12", "14", "22"}
    assert 60_000 < jobs.since < 70_000
    (run_dir / "job.json").write_text("{")
    assert jobs_of(run_dir) is None


def test_jobs_that_accounting_has_forgotten_are_kept_as_it_knew_them():
    before = parse_accounting(SACCT, JOBS)
    trainer = replace(before[0], state="COMPLETED", ended_at_s=1795267901.0)
    assert merged([trainer], before) == [trainer, *before[1:]]
    assert merged([], before) == before


def test_without_accounting_hours_are_those_that_the_run_wrote_itself():
    rows = estimated(
        [(0.0, 50.0), (50.0, 90.0)],
        [(None, "n1", 10.0, 40.0, 90.0), (None, None, 60.0, None, 90.0)],
        num_gpus=8,
        gpus_per_worker=2,
        job=None,
        is_running=True,
    )
    assert [(each.kind, each.state, each.elapsed_s, each.num_gpus) for each in rows] == [
        ("trainer", "over", 50, 8),
        ("trainer", "running", 40, 8),
        ("worker", "over", 30, 2),
        ("worker", "running", 30, 2),
    ]
    assert {each.source for each in rows} == {"run"}
