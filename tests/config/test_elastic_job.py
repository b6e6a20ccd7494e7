"""Lives of rollout workers that are refused before a job is submitted."""

import pytest

from rollpacker.core.errors import ConfigError
from tests.sim.composed import composed

WORKERS = (
    *("model.path=x", "data.path=x.jsonl", "cluster=h800"),
    *("elastic=slurm", "elastic.job.partition=free", "elastic.max_workers=3"),
)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["least_time_min=2"],
            r"=2: Slurm may give a worker no more than 120 s.*least_time_min=3 or more",
        ),
        (["time_limit_min=2"], r"leaves 30 s before.*elastic.least_stay_s=120\..*time_limit_min=3 or more"),
        (
            ["time_limit_min=30", "least_time_min=31"],
            r"least_time_min=31 with .*least_time_min=30 or less",
        ),
    ],
)
def test_one_in_which_a_worker_could_not_serve_is_refused(words, says):
    with pytest.raises(ConfigError, match=f"(?s){says}"):
        composed(*WORKERS, *(f"elastic.job.{word}" for word in words))


def test_one_that_slurm_s_signal_would_end_as_it_begins_is_refused():
    with pytest.raises(ConfigError, match=r"(?s)cluster.signal_lead_s=200 before.*time_limit_min=4 or more"):
        composed(*WORKERS, "elastic.job.time_limit_min=3", "cluster.signal_lead_s=200")


@pytest.mark.parametrize(
    "words",
    [
        ["elastic.job.least_time_min=3"],
        [
            "elastic.job.least_time_min=1",
            "cluster.signal_lead_s=30",
            "elastic.least_stay_s=10",
            "elastic.drain_lead_s=10",
        ],
        ["elastic.job.time_limit_min=1", "elastic.max_workers=0"],
    ],
)
def test_one_in_which_it_can_is_taken(words):
    composed(*WORKERS, *words)
