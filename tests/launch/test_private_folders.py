"""What a run writes is its user's own, unless that user has said otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rollpacker.cli.main import main
from rollpacker.config.words import replaced
from rollpacker.launch.submissions import Submission, write_submission
from rollpacker.runtime.ray.rendezvous import Rendezvous
from tests.launch.commands import install_command
from tests.sim.test_systems import SMALL
from tests.timeline.runs import modelled_run


@pytest.fixture(autouse=True, params=[0o000, 0o022])
def umask(request: pytest.FixtureRequest) -> None:
    former = os.umask(request.param)
    yield
    os.umask(former)


def mode_of(folder: Path) -> int:
    return folder.stat().st_mode & 0o7777


def test_nobody_else_enters_the_folder_of_a_run(tmp_path: Path) -> None:
    assert mode_of(modelled_run(tmp_path / "runs" / "x", "run.num_steps=1")) == 0o700


def test_a_folder_made_beforehand_and_one_opened_later_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x").chmod(0o2750)
    modelled_run(tmp_path / "x", "run.num_steps=1")
    assert mode_of(tmp_path / "x") == 0o2750
    (tmp_path / "x").chmod(0o755)
    modelled_run(tmp_path / "x", "run.num_steps=2", "run.resume=auto")
    assert mode_of(tmp_path / "x") == 0o755


def test_nobody_else_enters_the_folder_that_the_points_of_a_sweep_share_nor_a_points_own(tmp_path: Path) -> None:
    words = ["run.num_steps=1", "run.seed=0,1", f"run.dir={tmp_path}/sweep/${{run.seed}}", "run.progress=none"]
    assert main(["train", "-m", *replaced(SMALL, words)]) == 0
    made = [tmp_path / "sweep", *(folder.parent for folder in (tmp_path / "sweep").glob("*/status.json"))]
    assert len(made) == 3
    assert {mode_of(folder) for folder in made} == {0o700}


@pytest.mark.parametrize("launcher", [["hydra/launcher=slurm", "hydra.launcher.detach=true"], []], ids=len)
def test_nobody_else_reads_the_record_of_a_multirun_in_a_folder_that_others_enter(
    launcher: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep/multirun.yaml").touch()
    (tmp_path / "sweep/multirun.yaml").chmod(0o644)
    install_command(tmp_path, "sbatch", "echo 1", monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))  # without the rest of Slurm
    words = [*launcher, "cluster=slurm", "cluster.has_shared_files=true", "run.progress=none"]
    given = [*words, "cluster.environment={TOKEN: secret}", "run.num_steps=1", f"run.dir={tmp_path}/sweep/x"]
    assert main(["train", "-m", *replaced(SMALL, given)]) == 0
    assert "secret" in (tmp_path / "sweep/multirun.yaml").read_text()
    assert mode_of(tmp_path / "sweep/multirun.yaml") == 0o600


def test_nobody_else_enters_the_folder_of_a_run_that_is_only_submitted_nor_where_its_ranks_meet(tmp_path: Path) -> None:
    write_submission(tmp_path / "x", Submission(job_id="1", folder=tmp_path, num_nodes=1, submitted_at=0.0))
    Rendezvous(tmp_path / "y" / "meeting").open(0, "here")
    assert mode_of(tmp_path / "x") == mode_of(tmp_path / "y" / "meeting") == 0o700
