"""The file that names the job of a run: without it a run was never submitted; unread, that is not known."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from rollpacker.config.compose import compose
from rollpacker.core.errors import WorldError
from rollpacker.launch.job import PointProcess
from rollpacker.launch.points import Point
from rollpacker.launch.queued_points import points_in_queue
from rollpacker.launch.sbatch import submit
from rollpacker.launch.submissions import read_submission, write_submission
from tests.launch.commands import install_command
from tests.launch.runs import a_submission
from tests.unreadable import make_unreadable


def test_a_run_without_the_file_or_without_a_folder_was_never_submitted(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert [read_submission(tmp_path / name) for name in ("", "nowhere", "file")] == [None] * 3


@pytest.mark.parametrize(
    ("number", "reason"),
    [(errno.EACCES, "Permission denied"), (errno.EIO, "Input/output error"), (0, "it is damaged, or another version")],
)
def test_a_point_is_not_taken_for_never_submitted_where_the_file_cannot_be_read(
    number: int, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "job.json"
    write_submission(tmp_path, a_submission())
    if number:
        make_unreadable(monkeypatch, file, number)
    else:
        file.write_text("{")
    config = compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={tmp_path}"])
    with pytest.raises(WorldError) as error:
        points_in_queue([Point(number=0, name="", config=config)])
    assert error.value.problem.startswith(f"{file} cannot be read: {reason}")
    assert "once `squeue --me` lists no job of this run" in error.value.remedy


def test_a_submitted_job_is_named_in_the_error_where_the_runs_last_job_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = compose(["backend=sim", "model=qwen2.5-7b", "cluster=slurm", f"run.dir={tmp_path}"])
    install_command(tmp_path, "sbatch", f"echo '{{' > {tmp_path}/job.json; echo 7", monkeypatch)
    with pytest.raises(WorldError, match=r"job\.json cannot be read: it is damaged") as error:
        submit(tmp_path, "", {tmp_path: PointProcess(print, config)}, 1)
    assert error.value.allowed.startswith("Job 7 was submitted before that")
    assert re.fullmatch(r"scancel 7\. Make it readable; .* of this run; then launch again", error.value.remedy)
