"""`python -m tests.launch.test_job_table` draws the golden file anew, to be read in review."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.launch.job_table import job_table, run_names
from rollpacker.launch.run_status_view import RunStatusView
from rollpacker.terminal import Terminal
from tests.launch.runs import NOW, a_job, a_run, a_status, a_submission, progress

GOLDEN = Path(__file__).parent / "golden" / "job_table.txt"


def _sweep() -> list[RunStatusView]:
    crash = "engine-3 died (exit code -9): torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB"
    return [
        a_run(
            "0-verl",
            submission=a_submission("4711_0"),
            job=a_job(job_id="4711_0"),
            status=a_status(steps=112),
            progress=progress(112, 0.412),
        ),
        a_run(
            "1-rlhfuse",
            submission=a_submission("4711_1", num_nodes=10),
            job=a_job(num_nodes=10, node_list="gpu[01,03,05-08,11-14]", num_restarts=2, job_id="4711_1"),
            status=a_status(steps=98),
            progress=progress(98, 0.39),
        ),
        a_run(
            "2-rollpacker",
            submission=a_submission("4711_2"),
            job=a_job("PENDING", reason="BeginTime", num_restarts=1, job_id="4711_2"),
            status=a_status("preempted", steps=77, reason="preempted"),
            progress=progress(77, 0.45),
        ),
        *(
            a_run(
                name,
                submission=a_submission("4712", num_nodes=8),
                job=a_job("PENDING", num_nodes=8, reason="Resources", job_id="4712"),
            )
            for name in ("3-rollpacker-32b", "4-rollpacker-32b")
        ),
        a_run(
            "5-verl",
            submission=a_submission("4714"),
            job=a_job("FAILED", exit_code=1, end_time=NOW - 100, job_id="4714"),
            status=a_status("failed", reason=crash),
            progress=progress(12, 0.21),
        ),
        a_run(
            "6-verl",
            submission=a_submission("4715"),
            job=a_job("OUT_OF_MEMORY", end_time=NOW - 100, job_id="4715"),
            status=a_status(),
        ),
        a_run(
            "7-verl",
            submission=a_submission("4716"),
            job=a_job("COMPLETED", end_time=NOW - 100, job_id="4716"),
            status=a_status("finished", steps=400),
            progress=progress(400, 0.71),
        ),
    ]


def _drawn(views: list[RunStatusView], width: int, complaint: str = "") -> str:
    console = Terminal(width=width)
    with console.capture() as capture:
        console.print(job_table(views, now=NOW, complaint=complaint))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def test_a_sweep_in_80_columns_looks_as_it_was_reviewed() -> None:
    assert _drawn(_sweep(), 80) == GOLDEN.read_text()


def test_the_job_in_which_a_run_was_continued_by_hand_is_shown() -> None:
    text = _drawn([a_run("x", submission=a_submission("4711"), job=a_job(job_id="4720"), status=a_status())], 80)
    assert "4720" in text
    assert "4711" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_number_is_cut(width: int) -> None:
    text = _drawn(_sweep(), width)

    assert max(map(len, text.splitlines())) <= width
    for cell in ("112/400", "0.412", "53:20", "4711_2", "8 runs: 2 running, 2 waiting, 1 requeued"):
        assert cell in text


def test_local_runs_have_a_host_and_no_columns_of_jobs() -> None:
    text = _drawn([a_run("x", status=a_status("finished"), progress=progress(400, 0.5))], 80)

    assert text.splitlines()[2].split() == ["run", "state", "host", "step", "reward", "time"]
    assert text.splitlines()[3].split() == ["x", "finished", "gpu07", "400/400", "0.500", "3:26:40"]


def test_a_reason_that_runs_share_is_told_once() -> None:
    assert _drawn(_sweep(), 80).count("Resources") == 1


def test_what_a_log_says_is_not_taken_for_markup() -> None:
    failed = a_run(job=a_job("FAILED"), status=a_status("failed", reason="KeyError: [red]x[/red]"))

    assert "KeyError: [red]x[/red]" in _drawn([failed], 80)


def test_a_slurm_that_could_not_be_asked_is_told() -> None:
    text = _drawn([a_run(status=a_status())], 120, complaint="There is no command `squeue` here.")

    assert "Slurm did not answer; this is the status that the runs wrote themselves. There is no command" in text


def test_an_accounting_that_could_not_be_asked_is_told_beside_what_slurm_says_of_jobs() -> None:
    text = _drawn([a_run(job=a_job(), status=a_status())], 160, complaint="`sacct` failed: Connection refused")

    assert "running" in text
    assert "Slurm's accounting did not answer; of jobs that squeue has forgotten, the runs tell how they ended." in text
    assert "`sacct` failed: Connection refused" in text


def test_names_are_what_tells_the_paths_apart_and_the_folder_is_one_that_commands_take() -> None:
    assert run_names([Path("runs/a/0-verl"), Path("runs/b/0-verl")]) == (Path("runs"), ("a/0-verl", "b/0-verl"))
    assert run_names([Path("runs/a/0-verl")]) == (Path("runs/a"), ("0-verl",))
    assert run_names([Path("/far/a"), Path("/far/b/c")]) == (Path("/far"), ("a", "b/c"))


def test_times_of_modelled_runs_are_marked() -> None:
    modelled = replace(progress(400, 0.5), is_modelled=True)
    assert "3:26:40 modelled" in _drawn([a_run("x", status=a_status("finished"), progress=modelled)], 80)


@pytest.mark.parametrize("state", ["interrupted", "preempted"])
def test_a_run_that_was_broken_off_says_how_to_go_on(state: str) -> None:
    text = _drawn([a_run("x", status=a_status(state))], 120)
    assert f"{state} runs/e2e/x\n  The same command with the same run.dir and run.resume=auto goes on" in text


def test_a_job_that_begins_by_a_clock_ahead_of_this_one_has_run_for_no_time() -> None:
    text = _drawn([a_run("x", job=a_job(start_time=NOW + 3), status=a_status())], 80)
    assert text.splitlines()[3].split()[-1] == "0:00"


if __name__ == "__main__":
    GOLDEN.write_text(_drawn(_sweep(), 80))
