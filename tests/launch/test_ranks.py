"""What each rank of a job does."""

import os
from contextlib import suppress

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import ConfigError, WorldError
from rollpacker.launch import ranks
from rollpacker.runtime.ray.rendezvous import Rendezvous

MODELLED = ["experiment=e2e", "backend=sim", "run.num_steps=1"]


@pytest.fixture
def in_step(monkeypatch):
    """Make this process one rank of a step on two nodes."""

    def become(rank):
        step = {"JOB_ID": "7", "STEP_ID": "0", "STEP_NUM_TASKS": "2", "STEP_NODELIST": "node[1-2]"}
        for name, value in (step | {"PROCID": str(rank), "CPUS_ON_NODE": "4"}).items():
            monkeypatch.setenv(f"SLURM_{name}", value)
        monkeypatch.setenv("SLURMD_NODENAME", f"node{rank + 1}")

    return become


def real_run(tmp_path, *overrides):
    return compose(
        [f"model.path={tmp_path}/model", f"data.path={tmp_path}/data", f"run.dir={tmp_path}/run", *overrides]
    )


def never(_config):
    raise AssertionError("only the rank that trains validates")


def refuse(_config):
    raise ConfigError("No.")


@pytest.mark.parametrize(
    ("given", "num_requeues", "resume"), [("null", None, "auto"), ("never", None, "never"), ("never", "1", "auto")]
)
def test_in_a_job_the_first_rank_resumes_unless_it_may_not_and_releases_the_others_when_it_ends(
    in_step, monkeypatch, tmp_path, *, given, num_requeues, resume
):
    in_step(0)
    if num_requeues is not None:
        monkeypatch.setenv("SLURM_RESTART_COUNT", num_requeues)
    validated = []

    def validate(config):
        validated.append(config.run.resume)
        refuse(config)

    with pytest.raises(ConfigError, match="No"):
        ranks.train(real_run(tmp_path, f"run.resume={given}"), validate)
    assert validated == [resume]
    assert Rendezvous(tmp_path / "run" / "jobs" / f"7.0.{num_requeues or 0}").is_finished


@pytest.mark.parametrize("rank", [0, 1])
def test_no_rank_takes_the_end_of_an_earlier_command_in_its_step_for_that_of_its_own(in_step, tmp_path, rank):
    for each in (0, 1):
        in_step(each)
        with suppress(ConfigError):
            ranks.train(real_run(tmp_path), refuse)
    in_step(rank)
    with pytest.raises(WorldError, match=f"Rank {rank} has already run a command in this step"):
        ranks.train(real_run(tmp_path), never)


def test_alone_on_its_node_a_command_can_be_given_again_in_the_same_step(in_step, monkeypatch, tmp_path):
    in_step(0)
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "1")
    monkeypatch.setenv("SLURM_STEP_NODELIST", "node1")
    for _ in range(2):
        with pytest.raises(ConfigError, match="No"):
            ranks.train(real_run(tmp_path), refuse)
    assert list(tmp_path.iterdir()) == []


def test_another_rank_reads_nothing_and_ends_well_when_the_first_one_ended_before_it_had_a_ray(in_step, tmp_path):
    in_step(1)
    rendezvous = Rendezvous(tmp_path / "run" / "jobs" / "7.0.0")
    rendezvous.open(0, "node1")
    rendezvous.finish()
    ranks.train(real_run(tmp_path), never)
    report = rendezvous.report_of(1)
    assert report is not None
    assert (report.node, report.stage, report.failure) == ("node2", "waiting for node1", "")


def test_another_rank_waits_for_the_head_no_longer_than_the_deadline_and_says_so_to_the_first(in_step, tmp_path):
    in_step(1)
    with pytest.raises(WorldError, match="did not appear on node1"):
        ranks.train(real_run(tmp_path, "backend.deadlines.start_s=0.1"), never)
    report = Rendezvous(tmp_path / "run" / "jobs" / "7.0.0").report_of(1)
    assert report is not None
    assert "did not appear on node1" in report.failure


def test_of_a_modelled_run_only_the_first_rank_has_work(in_step, tmp_path):
    in_step(1)
    config = compose([*MODELLED, f"run.dir={tmp_path}/run"])
    ranks.train(config, never)
    assert list(tmp_path.iterdir()) == []


def test_outside_a_job_nothing_of_it_is_assumed(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    validated = []

    def validate(config):
        validated.append(config.run.resume)
        refuse(config)

    with pytest.raises(ConfigError):
        ranks.train(real_run(tmp_path, "run.resume=never"), validate)
    assert validated == ["never"]
    assert list(tmp_path.iterdir()) == []
