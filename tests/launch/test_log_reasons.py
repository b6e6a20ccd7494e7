from __future__ import annotations

from pathlib import Path

import pytest

from rollpacker.launch.log_reasons import reason_in_logs

TRACEBACK = """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/submitit/core/submission.py", line 55, in process_job
    result = delayed.result()
  File "/env/lib/python3.11/site-packages/rollpacker/launch/job.py", line 10, in run
    raise RuntimeError("x")
torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB
submitit WARNING (2026-11-21 13:00:00,000) - Job is over
"""
OURS = """\
step 3 of 10
runs/x failed:
engine-1 died: exit code -9.
Its log is runs/x/logs/attempt-000/engine-1.log.
Look at it.
srun: error: node1: task 0: Exited with exit code 1
"""
SEVERAL = """\
runs/x failed:
2 mistakes:
1. data.path=prompts.jsonl does not exist.
   It is a JSONL file.
2. run.dir=x is a file.
"""
SLURMS = """\
loading the model
slurmstepd: error: Detected 1 oom_kill event in StepId=8.0. Some of the step tasks have been OOM Killed.
srun: error: node1: task 0: Out Of Memory
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (TRACEBACK, "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.31 GiB"),
        (OURS, "engine-1 died: exit code -9."),
        (SEVERAL, "1. data.path=prompts.jsonl does not exist."),
        (TRACEBACK + OURS, "engine-1 died: exit code -9."),
        (SLURMS, SLURMS.splitlines()[1]),
        (
            "srun: error: node1: task 0: Exited with exit code 3\n",
            "srun: error: node1: task 0: Exited with exit code 3",
        ),
        ("all is well\n", ""),
        ("", ""),
    ],
)
def test_the_last_thing_that_looks_like_a_reason_is_taken(log: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log)

    assert reason_in_logs([tmp_path / "log"]) == reason


def test_our_own_error_in_a_later_rank_is_better_than_a_traceback_in_the_first(tmp_path: Path) -> None:
    (tmp_path / "0").write_text(TRACEBACK)
    (tmp_path / "1").write_text(OURS)

    assert reason_in_logs([tmp_path / "0", tmp_path / "1", tmp_path / "absent"]).startswith("engine-1")


def test_of_a_long_log_only_the_end_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(OURS + "all is well\n" * 10_000)

    assert reason_in_logs([tmp_path / "log"]) == ""


def test_a_reason_is_one_short_line_without_colours(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\x1b[31mValueError: " + b"\xff1.0, " * 1000 + b"\x1b[0m\n")

    reason = reason_in_logs([tmp_path / "log"])

    assert reason.startswith("ValueError: ")
    assert len(reason) < 320
