from __future__ import annotations

import errno
import fcntl
import os
import shutil
import socket
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.launch.collect_status import collect_status, find_runs
from rollpacker.launch.submissions import write_submission
from rollpacker.metrics.schemas import STEPS
from rollpacker.metrics.table_writer import MetricsWriter
from rollpacker.runtime.run.status import write_status
from tests.launch.commands import install_command
from tests.launch.runs import a_status, a_submission
from tests.unreadable import make_unreadable


def _write_metrics(run_dir: Path, rewards: list[float]) -> None:
    values = {"int": 1, "float": 1.0, "bool": False, "text": "x", "texts": ["x"], "floats by name": {"engine": 1.0}}
    row = {column.name: values[column.type] for column in STEPS.columns}
    writer = MetricsWriter(run_dir / "metrics")
    for step, reward in enumerate(rewards):
        changed = {"step": step, "reward_mean": reward, "finished_at_s": 30.0 * (step + 1)}
        writer.write_step(step, {"steps": [row | changed], "domains": [], "responses": [], "intervals": []})
    writer.close()


def _squeue_says(tmp_path: Path, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install_command(tmp_path, "squeue", f"echo '19|19|{state}|None|256|2|gpu[01-02]|1795266000|0|'", monkeypatch)
    install_command(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1", monkeypatch)


def test_runs_are_found_by_what_they_leave_and_not_below_each_other(tmp_path: Path) -> None:
    for name, mark in (("b/0-verl", "job.json"), ("b/1-verl", "status.json"), ("a", "run.json")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / mark).write_text("{}")
    (tmp_path / "a/checkpoints/step-000001").mkdir(parents=True)
    (tmp_path / "a/checkpoints/step-000001/run.json").write_text("{}")
    (tmp_path / "b/.submitit").mkdir()
    (tmp_path / "b/.submitit/job.json").write_text("{}")

    assert list(find_runs(tmp_path)) == [tmp_path / "a", tmp_path / "b/0-verl", tmp_path / "b/1-verl"]
    assert list(find_runs(tmp_path / "a")) == [tmp_path / "a"]


def test_a_link_to_a_run_elsewhere_is_found_and_no_other_link_is_followed(tmp_path: Path) -> None:
    for folder in ("runs/b", "scratch/a", "scratch/sweep/0"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text("{}")
    for name, target in (("a", "scratch/a"), ("latest", "runs/b"), ("sweep", "scratch/sweep"), ("loop", "runs/loop")):
        (tmp_path / "runs" / name).symlink_to(tmp_path / target)

    assert list(find_runs(tmp_path / "runs")) == [tmp_path / "runs/a", tmp_path / "runs/b"]


def test_a_run_is_found_once_whatever_links_lead_to_it(tmp_path: Path) -> None:
    for folder in ("runs/sweep/0", "scratch/a"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "run.json").write_text("{}")
    (tmp_path / "runs/best").mkdir()
    for name, target in (("best/0", "runs/sweep/0"), ("best/a", "scratch/a"), ("z", "scratch/a")):
        (tmp_path / "runs" / name).symlink_to(tmp_path / target)

    assert list(find_runs(tmp_path / "runs")) == [tmp_path / "runs/best/a", tmp_path / "runs/sweep/0"]
    assert list(find_runs(tmp_path / "runs/z")) == [tmp_path / "runs/z"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_folder_below_that_may_not_be_read_or_vanished_is_skipped_and_one_that_cannot_be_read_is_an_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    scandir = os.scandir

    def scan_or_fail(folder: Path) -> object:
        if folder == tmp_path / "a":
            raise OSError(number, os.strerror(number), str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", scan_or_fail)
    with pytest.raises(OSError, match=os.strerror(number)) if number == errno.EIO else nullcontext():
        assert list(find_runs(tmp_path)) == []
    with pytest.raises(OSError, match=os.strerror(number)):
        list(find_runs(tmp_path / "a"))


def test_a_folder_that_vanishes_while_runs_are_listed_is_skipped(tmp_path: Path) -> None:
    for name in ("a", "c"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "b").mkdir()

    found = find_runs(tmp_path)
    assert next(found) == tmp_path / "a"
    shutil.rmtree(tmp_path / "b")
    assert list(found) == [tmp_path / "c"]


def test_a_run_tells_its_job_its_status_and_its_last_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission())
    write_status(run_dir, a_status())
    _write_metrics(run_dir, [9.0, *[0.25, 0.5] * 5])  # the reward is the mean of the last ten
    _squeue_says(tmp_path, "RUNNING", monkeypatch)

    collected = collect_status([run_dir])

    (run,) = collected.views
    assert (run.state, collected.complaint) == ("running", "")
    assert run.progress is not None
    assert (run.progress.num_steps, run.progress.reward_mean, run.progress.elapsed_s) == (11, 0.375, 330.0)
    assert run.num_finished_steps == 11


def test_each_job_is_looked_for_on_the_cluster_that_it_was_submitted_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clusters have a job 19 each; a third run is older than the record of its cluster, so the shell's is asked."""
    submitted = {"a": "cm4", "b": "", "c": None}
    for name, cluster in submitted.items():
        write_submission(tmp_path / name, replace(a_submission(), cluster=cluster))
    states = "case ${SLURM_CLUSTERS-none} in cm4) s=RUNNING ;; none) s=PENDING ;; inter) s=SUSPENDED ;; esac"
    row = "19|19|$s|None|256|2|gpu[01-02]|1795266000|0|"
    install_command(tmp_path, "squeue", f'{states}; echo "{row}"', monkeypatch)
    monkeypatch.setenv("SLURM_CLUSTERS", "inter")

    views = collect_status([tmp_path / name for name in submitted]).views

    assert [view.job and view.job.state for view in views] == ["RUNNING", "PENDING", "SUSPENDED"]


def test_a_cluster_that_does_not_answer_hides_no_job_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, cluster in (("a", "cm4"), ("b", "inter")):
        write_submission(tmp_path / name, replace(a_submission(), cluster=cluster))
    row = "19|19|RUNNING|None|256|2|gpu[01-02]|1795266000|0|"
    refusal = "[ $SLURM_CLUSTERS = cm4 ] && { echo 'cm4 is down' >&2; exit 1; }"
    install_command(tmp_path, "squeue", f"{refusal}; echo '{row}'", monkeypatch)

    collected = collect_status([tmp_path / "a", tmp_path / "b"])

    assert [view.job and view.job.state for view in collected.views] == [None, "RUNNING"]
    assert "cm4 is down" in collected.complaint


def test_a_status_that_may_not_be_read_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_status(tmp_path, a_status())
    make_unreadable(monkeypatch, tmp_path / "status.json", errno.EACCES)

    (run,) = collect_status([tmp_path]).views

    assert (run.state, run.logged) == ("unknown", "status.json cannot be read: Permission denied")


def test_a_run_whose_job_failed_without_a_word_is_explained_by_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission(folder=tmp_path))
    (tmp_path / "19_0_log.out").write_text("srun: error: gpu01: task 0: Exited with exit code 1\n")
    (tmp_path / "19_1_log.err").write_text("ModuleNotFoundError: No module named 'rollpacker'\n")
    _squeue_says(tmp_path, "FAILED", monkeypatch)

    (run,) = collect_status([run_dir]).views

    assert (run.state, run.reason) == ("failed", "ModuleNotFoundError: No module named 'rollpacker'")


def test_a_run_that_was_killed_is_explained_by_the_log_of_its_last_attempts_actor(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write_status(run_dir, replace(a_status(), job_id=None, host=socket.gethostname()))
    (run_dir / "lock").touch()
    for attempt, text in (("attempt-000", "ValueError: old\n"), ("attempt-001", "ValueError: new\n")):
        (run_dir / "logs" / attempt).mkdir(parents=True)
        (run_dir / "logs" / attempt / "engine-0.log").write_text(text)

    (run,) = collect_status([run_dir]).views

    assert (run.state, run.reason) == ("died", "ValueError: new")


def test_a_run_on_this_machine_lives_as_long_as_its_lock_is_held(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    write_status(run_dir, replace(a_status(), job_id=None, host=socket.gethostname()))
    with (run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert collect_status([run_dir]).views[0].state == "running"
    assert collect_status([run_dir]).views[0].state == "died"


@pytest.mark.parametrize(("state", "word"), [("RUNNING", "running"), ("FAILED", "died")])
def test_a_run_that_was_continued_by_hand_lives_as_its_later_job_does(
    state: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission())
    write_status(run_dir, replace(a_status(), job_id="42"))
    answer = f"[[ $* == *jobs=42* ]] && echo '42|42|{state}|None|0|1|gpu07|1795266900|0|'"
    install_command(tmp_path, "squeue", f"{answer} || true", monkeypatch)
    row = "19|19|TIMEOUT|None|0:0|2|gpu[01-02]|1795266000|1795266800|1795266000"
    install_command(tmp_path, "sacct", f"[[ $* == *jobs=19* ]] && echo '{row}' || true", monkeypatch)

    (run,) = collect_status([run_dir]).views

    assert run.state == word
    assert run.job is not None
    assert run.job.node_list == "gpu07"


def test_an_ended_element_of_an_array_keeps_its_name_where_slurm_lists_it_under_two_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dirs = [tmp_path / name for name in ("0-verl", "1-tail")]
    for run_dir, name, number in zip(run_dirs, ("12_0", "12_1"), ("13", "12"), strict=True):
        write_submission(run_dir, a_submission(name))
        write_status(run_dir, replace(a_status("finished"), job_id=number))
    rows = [f"{names}|COMPLETED|None|0|1|gpu07|1795266000|0|" for names in ("12_0|13", "12_1|12")]
    install_command(tmp_path, "squeue", f"printf '%s\\n' {' '.join(map(repr, rows))}", monkeypatch)
    install_command(tmp_path, "sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1", monkeypatch)

    views = collect_status(run_dirs).views

    assert [view.job.job_id for view in views if view.job is not None] == ["12_0", "12_1"]


def test_a_run_goes_on_on_this_machine_after_its_job_while_its_lock_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission())
    write_status(run_dir, replace(a_status(), job_id=None, host=socket.gethostname()))
    _squeue_says(tmp_path, "FAILED", monkeypatch)
    with (run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (run,) = collect_status([run_dir]).views
        assert (run.state, run.reason, run.started_and_ended(0.0)) == ("running", "", None)
    assert collect_status([run_dir]).views[0].state == "died"


def test_where_slurm_does_not_answer_the_runs_tell_what_they_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    write_submission(run_dir, a_submission())
    write_status(run_dir, a_status("finished"))
    monkeypatch.setenv("PATH", str(tmp_path))

    collected = collect_status([run_dir])

    assert collected.views[0].state == "finished"
    assert collected.complaint == "There is no command `squeue` here."


def test_half_written_and_foreign_files_are_no_reason_to_fail(tmp_path: Path) -> None:
    for name, text in (("job.json", "{"), ("status.json", '{"state": "new"}'), ("metrics/manifest.json", "no")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert collect_status([tmp_path]).views[0].state == "unknown"
