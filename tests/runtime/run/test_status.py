"""A run's folder says how the run stands, whatever happened to it."""

import asyncio
import time
from contextlib import nullcontext

import pytest

from rollpacker.core.errors import Preempted, StorageFailed, WorldError
from rollpacker.runtime.run import status as status_module
from rollpacker.runtime.run.status import STATUS_FILE, read_status, shown_status


def one_more_step(folder, ending: BaseException | None):
    with shown_status(folder, attempt=2, finished_steps=3, num_steps=9, job_id="17", num_gpus=8) as board:
        assert read_status(folder).state == "running"
        board.step_finished(4)
        if ending is not None:
            raise ending


@pytest.mark.parametrize(
    ("ending", "state", "reason"),
    [
        (None, "finished", ""),
        (Preempted("asked", "requeued"), "preempted", "asked"),
        (WorldError("lost", "", "again"), "failed", "lost\nagain"),
        (ValueError("x"), "failed", "ValueError: x"),
        (KeyboardInterrupt(), "interrupted", ""),
        (asyncio.CancelledError(), "interrupted", ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_the_status_says_how_the_attempt_ended(tmp_path, ending, state, reason):
    with pytest.raises(type(ending)) if ending else nullcontext():
        one_more_step(tmp_path, ending)
    status = read_status(tmp_path)
    assert (status.state, status.reason) == (state, reason)
    assert (status.attempt, status.finished_steps, status.num_steps, status.job_id) == (2, 4, 9, "17")
    assert status.num_gpus == 8


def test_a_full_disk_hides_not_why_the_attempt_ended(tmp_path, monkeypatch):
    def refuse(*_):
        raise StorageFailed("The disk is full.")

    with (  # noqa: PT012 the disk is full from the middle on
        pytest.raises(Preempted, match="asked"),
        shown_status(tmp_path, attempt=0, finished_steps=0, num_steps=1, job_id=None),
    ):
        monkeypatch.setattr(status_module, "write_status", refuse)
        raise Preempted("asked", "requeued")


def test_the_status_counts_processor_time_from_the_beginning_of_the_attempt(tmp_path):
    before_s = time.process_time()
    with shown_status(tmp_path, attempt=0, finished_steps=0, num_steps=1, job_id=None) as board:
        first_s = read_status(tmp_path).processor_s
        sum(range(1_000_000))
        board.step_finished(1)
    last_s = read_status(tmp_path).processor_s
    assert 0 <= first_s < last_s < time.process_time() - before_s


def test_a_run_that_never_began_or_is_of_another_version_has_no_status(tmp_path):
    assert read_status(tmp_path) is None
    (tmp_path / STATUS_FILE).write_text('{"state": "running"}')
    assert read_status(tmp_path) is None
