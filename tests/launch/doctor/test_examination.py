from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.config.words import replaced
from rollpacker.launch.doctor import examination
from rollpacker.launch.doctor.findings import Finding
from tests.launch.doctor.test_preemption import QOS
from tests.launch.test_site_mistakes import MODELLED, SITE


@pytest.mark.parametrize(
    ("environment", "partition"),
    [
        ({}, "gpu"),
        ({"SBATCH_PARTITION": "cpu"}, "cpu"),
        ({"SBATCH_PARTITION": "cpu", "SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu"}, "gpu"),
    ],
)
def test_the_partition_that_is_checked_is_the_one_in_which_a_job_would_be(
    environment: Mapping[str, str], partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = _told("partition", environment, tmp_path, monkeypatch)
    assert told.text.startswith(f"{partition} is UP")


def test_a_mistake_in_a_variable_is_told_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _told("partition", {"SBATCH_PARTITION": "cpux"}, tmp_path, monkeypatch)
    assert told.text.startswith("SBATCH_PARTITION=cpux is not a partition")
    assert told.remedy == "Write SBATCH_PARTITION=cpu"


def test_a_variable_that_lifts_the_time_limit_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = _told("job", {"SBATCH_TIMELIMIT": "UNLIMITED"}, tmp_path, monkeypatch)
    assert told.text == "its nodes exist; without a time limit"


def test_in_a_job_its_own_qos_counts_and_no_variable_of_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(examination, "read_qos", lambda _: QOS)
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu", "SLURM_JOB_QOS": "spot"}
    shell = {"SBATCH_QOS": "hard", "SBATCH_TIMELIMIT": "5", "SBATCH_CONSTRAINT": "ibx"}
    assert "qos=spot lose" in _told("preemption", job | shell, tmp_path, monkeypatch).text
    assert _told("job", job | shell, tmp_path, monkeypatch).text == "its nodes exist; 1440 minutes for each attempt"


def test_nodes_of_environments_are_checked_for_a_run_that_has_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = ["cluster.environment_nodes.num_nodes=1", "cluster.environment_nodes.cpus_per_node=9999"]
    words = [*nodes, "backend=ray", "model=huggingface", "model.path=model", "data.path=prompts.jsonl"]
    environment = ["environment=gym", "environment.env=my.py:Maze", "reward=environment"]
    assert _told("job", {}, tmp_path, monkeypatch, *words).level == "ok"
    assert "9999" in _told("job", {}, tmp_path, monkeypatch, *words, *environment).text


def _told(
    subject: str, environment: Mapping[str, str], run_dir: Path, monkeypatch: pytest.MonkeyPatch, *words: str
) -> Finding:
    """The first finding on a subject; what comes later is not checked."""
    settings = {"KillWait": "30 sec", "PreemptType": "preempt/qos", "PreemptMode": "REQUEUE"}
    monkeypatch.setattr(examination, "has_slurm", lambda _: True)
    monkeypatch.setattr(examination, "read_site", lambda: replace(SITE, settings=settings))
    findings = examination.examine(compose(replaced([*MODELLED, f"run.dir={run_dir}"], words)), environment)
    return next(finding for finding in findings if finding.subject == subject)
