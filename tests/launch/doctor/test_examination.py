from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.launch.doctor import examination
from tests.launch.test_site_mistakes import MODELLED, SITE


@pytest.mark.parametrize(
    ("environment", "partition"),
    [
        ({}, "gpu"),
        ({"SBATCH_PARTITION": "cpu"}, "cpu"),
        ({"SBATCH_PARTITION": "cpu", "SLURM_JOB_PARTITION": "gpu"}, "gpu"),
    ],
)
def test_the_partition_that_is_checked_is_the_one_in_which_a_job_would_be(
    environment: Mapping[str, str], partition: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(examination, "has_slurm", lambda _: True)
    monkeypatch.setattr(examination, "read_site", lambda: replace(SITE, settings={"KillWait": "30 sec"}))
    findings = examination.examine(compose([*MODELLED, f"run.dir={tmp_path}"]), environment)
    told = next(finding for finding in findings if finding.subject == "partition")
    assert told.text.startswith(f"{partition} is UP")
