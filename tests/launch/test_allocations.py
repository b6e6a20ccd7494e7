"""What Slurm's accounting says of a run's job and of its workers, and what is said where there is none."""

from pathlib import Path

import pytest

from rollpacker.launch.allocations import Prices, array_of, estimated, parse_accounting
from rollpacker.launch.submissions import Submission

SACCT = """\
12_0|PREEMPTED|low|node2|1795267600|1795267612|1795267712|100|billing=3,cpu=6,gres/gpu=2,mem=3G,node=1
12_[1-7%2]|PENDING|low|None assigned|1795267600|Unknown|Unknown|0|
12_0|CANCELLED by 1000|low|node1|1795267712|1795267832|1795267892|60|billing=3,cpu=6,gres/gpu:a100=2,mem=3G,node=1
11|RUNNING|main|node1|1795267500|1795267501|Unknown|400|billing=8,cpu=8,gres/gpu=4,node=1
"""


def test_every_attempt_of_a_job_is_an_allocation_of_its_own_and_waiting_elements_are_none():
    trainer, first, second = parse_accounting(SACCT, "12")
    assert [each.kind for each in (trainer, first, second)] == ["trainer", "worker", "worker"]
    assert (trainer.state, trainer.ended_at_s, trainer.num_gpus) == ("RUNNING", None, 4)
    assert (first.job, first.state, first.elapsed_s, first.num_gpus) == ("12_0", "PREEMPTED", 100, 2)
    assert (second.state, second.nodes, second.started_at_s, second.num_gpus) == ("CANCELLED", "node1", 1795267832, 2)
    assert first.billing == pytest.approx(3 * 100 / 3600)


def test_a_price_is_of_a_gpu_hour_and_without_one_there_is_no_cost():
    trainer, first, _ = parse_accounting(SACCT, "12")
    prices = Prices(trainer=None, worker=3.6)
    assert first.row(prices)["gpu_seconds"] == 200
    assert first.row(prices)["cost"] == pytest.approx(0.2)
    assert trainer.row(prices)["cost"] is None


def test_a_job_finds_its_array_beside_its_script(tmp_path: Path):
    submission = Submission(job_id="11", folder=tmp_path, num_nodes=1, submitted_at=0.0)
    assert array_of(submission) is None
    (tmp_path / "11.elastic").write_text(f"12\n{tmp_path}\n")
    assert array_of(submission) == "12"


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
