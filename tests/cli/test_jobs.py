from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rollpacker.cli import jobs
from rollpacker.cli.main import main
from rollpacker.core.errors import ConfigError
from rollpacker.launch.collect_status import NUM_STEPS_OF_REWARD
from rollpacker.runtime.run.status import RunStatus, write_status
from rollpacker.terminal import Terminal
from tests.cli.test_evaluate import write_evaluation


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def _write_run(run_dir: Path, state: str, reason: str = "") -> None:
    run_dir.mkdir(parents=True)
    status = RunStatus(
        state=state,  # type: ignore[arg-type]
        attempt=0,
        finished_steps=3,
        num_steps=10,
        reason=reason,
        job_id=None,
        host="far",
        updated_at=1.0,
        processor_s=0.0,
        num_gpus=0,
    )
    write_status(run_dir, status)


def test_runs_without_slurm_are_shown_with_the_reason_of_each_failure(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_run(workdir / "runs/a", "finished")
    _write_run(workdir / "runs/sweep/0-verl", "failed", "The disk is full.")

    assert main(["jobs"]) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "2 runs: 1 finished, 1 failed; below runs",
        "",
        "run state host step reward time",
        "a finished far 3/10",
        "sweep/0-verl failed far 3/10",
        "",
        "failed runs/sweep/0-verl",
        "The disk is full.",
    ]


def test_the_last_held_out_score_of_a_run_is_shown_with_its_set(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_run(workdir / "runs/a", "finished")
    _write_run(workdir / "runs/b", "finished")
    for step, reward in ((0, 0.25), (2, 0.75)):
        write_evaluation(workdir / "runs/a", {"aime24": [[reward]], "math500": [[1.0]]}, step)
    (workdir / "runs/b/evaluation").mkdir()
    (workdir / "runs/b/evaluation/manifest.json").write_text("{")

    assert main(["jobs"]) == 0

    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    expected = "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)."
    assert lines[2:] == [
        "run state host step reward held out time",
        "a finished far 3/10 aime24 0.750 +1",
        "b finished far 3/10",
        "",
        f"runs/b/evaluation/manifest.json is not readable as a manifest: {expected}",
    ]


def test_tables_of_another_version_are_named_up_to_a_few_and_those_that_are_not_there_yet_are_not(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        folder = workdir / f"runs/{number}/metrics"
        _write_run(folder.parent, "finished")
        folder.mkdir()
        (folder / "manifest.json").write_text('{"schema_version": 1, "parts": [], "num_truncations": 0}')
    (workdir / "runs/0/metrics/manifest.json").unlink()

    assert main(["jobs"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[-4:] == [
        *(f"runs/{number}/metrics/manifest.json was written with schema version 1." for number in (1, 2, 3)),
        "And 1 more file cannot be read.",
    ]


def test_the_path_of_a_run_that_failed_stays_whole_however_long_it_is(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = workdir / "runs" / ("x" * 60) / ("y" * 60)
    _write_run(run_dir, "interrupted")

    assert main(["jobs", str(workdir)]) == 0

    printed = capsys.readouterr().out
    assert f"interrupted {run_dir.relative_to(workdir)}\n" in printed
    remedy = "run.resume=auto goes on from its last checkpoint, or begins anew where it has none."
    assert remedy in " ".join(printed.split())


def test_the_path_of_a_table_that_cannot_be_read_stays_whole_however_long_it_is(
    workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = workdir / "runs" / ("x" * 60) / ("y" * 60) / "metrics" / "manifest.json"
    _write_run(manifest.parents[1], "finished")
    manifest.parent.mkdir()
    manifest.write_text('{"schema_version": 1, "parts": [], "num_truncations": 0}')

    assert main(["jobs", "runs"]) == 0

    said = f"{manifest.relative_to(workdir)} was written with schema version 1."
    assert capsys.readouterr().out.splitlines()[-1] == said


def test_a_run_below_two_of_the_folders_is_shown_once(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _write_run(workdir / "runs/a", "finished")

    assert main(["jobs", "runs", "runs/a"]) == 0

    assert capsys.readouterr().out.startswith("1 run: 1 finished")


def test_where_there_are_no_runs_it_says_so(workdir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (workdir / "empty").mkdir()

    assert (main(["jobs"]), main(["jobs", "empty"])) == (0, 0)

    nowhere, below = capsys.readouterr().out.splitlines()
    assert nowhere.startswith("There are no runs below runs.")
    assert below.startswith("There are no runs below empty.")


@pytest.mark.parametrize(
    ("words", "problem", "remedy"),
    [
        (["rums"], "rums is not a folder.", "Write rollpacker jobs runs"),
        (["my rums"], "my rums is not a folder.", "Write rollpacker jobs 'my runs'"),
        (["wach"], "wach is not a folder.", "Write rollpacker jobs watch"),
        (["rums", "runs", "nowhere"], "rums, nowhere are not folders.", "For example: rollpacker jobs runs"),
        (["runs/nowhere/x"], "runs/nowhere/x is not a folder.", "For example: rollpacker jobs runs"),
        (["watch"], "`watch` was given, and the output is not a terminal.", "Leave `watch` out"),
        (["--wach"], "`--wach` is not an option.", "Arguments have no dashes: write watch"),
    ],
)
def test_a_word_that_cannot_be_meant_is_refused(
    words: list[str], problem: str, remedy: str, workdir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_run(workdir / "runs/a", "finished")
    (workdir / "my runs").mkdir()

    assert main(["jobs", *words]) == 2

    printed = capsys.readouterr()
    assert printed.out == ""
    assert problem in printed.err
    assert remedy in printed.err


def test_help_says_of_what_a_time_and_a_reward_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["help", "jobs"]) == 0

    said = " ".join(capsys.readouterr().out.split())
    assert (
        "`time` is how long the last attempt of its job ran; of a run without a job, how long all attempts took" in said
    )
    assert "until its last step's end, with evaluations and checkpoints before that, and without their start" in said
    assert "without their start and what was done again" in said
    assert "`held out` is the score of the first held-out set that has one in the newest evaluation" in said
    assert f"mean reward of its last {NUM_STEPS_OF_REWARD} steps" in said


def test_watch_ends_by_itself_when_nothing_is_at_work(workdir: Path) -> None:
    _write_run(workdir / "runs/a", "finished")
    ours, theirs = pty.openpty()

    done = subprocess.run(
        [sys.executable, "-m", "rollpacker.cli", "jobs", "watch"], stdout=theirs, check=False, timeout=120
    )

    os.close(theirs)
    assert done.returncode == 0
    assert b"1 run" in os.read(ours, 1 << 16)
    os.close(ours)


def test_watch_says_that_a_folder_was_removed(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_run(workdir / "runs/a", "running")
    monkeypatch.setattr(time, "sleep", lambda _: shutil.rmtree(workdir / "runs", ignore_errors=True))

    with pytest.raises(ConfigError, match="runs is not a folder"):
        jobs._watch(Terminal(force_terminal=True), [Path("runs")])


def test_looking_at_runs_needs_none_of_the_heavy_libraries(workdir: Path) -> None:
    _write_run(workdir / "runs/a", "finished")
    look = "import sys; from rollpacker.cli.main import main; main(['jobs']); print(sorted(sys.modules))"

    loaded = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True).stdout

    for heavy in ("torch", "ray", "submitit", "pyarrow", "hydra"):
        assert f"'{heavy}'" not in loaded


def test_the_help_names_every_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["jobs", "--help"]) == 0

    text = capsys.readouterr().out
    for word in ("DIR", "watch", "rollpacker jobs runs/e2e watch"):
        assert word in text


DAMAGED = {
    "empty": "",
    "a list": "[]",
    "nothing": "{}",
    "an odd state": {"state": "asleep"},
    "a reason that is no text": {"reason": ["a", {"b": 1}]},
    "a host that is no text": {"host": 5},
    "steps that are no number": {"finished_steps": "many"},
    "no steps": {"num_steps": None},
    "NUL": "\0" * 100,
    "deep": "[" * 100_000,
    "no text": b"\xff\xfe",
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_status_that_is_damaged_is_said_to_be_and_hides_no_other_run(
    workdir: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _write_run(workdir / "runs/whole", "failed", "because")
    _write_run(workdir / "runs/damaged", "running")
    file, content = workdir / "runs/damaged/status.json", DAMAGED[case]
    if isinstance(content, dict):
        content = json.dumps(json.loads(file.read_text()) | content)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    (workdir / "runs/whole/job.json").write_bytes(file.read_bytes())
    assert main(["jobs"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "2 runs: 1 failed, 1 unknown" in printed
    assert "unknown runs/damaged status.json cannot be read: it is damaged, or another version wrote it" in printed
    assert "because" in printed
    assert "runs/whole/job.json cannot be read: it is damaged, or another version wrote it." in printed
