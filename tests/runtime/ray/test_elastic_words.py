"""What a rollout worker that waits for a run says to the person who started it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollpacker.config.sections.elastic_job import LEAVES_BEFORE_LIMIT_S
from rollpacker.runtime.job import elastic_folder
from rollpacker.runtime.job.elastic_folder import ElasticFolder
from rollpacker.runtime.job.signals import handlers_kept
from rollpacker.runtime.ray import elastic_node
from rollpacker.runtime.ray.elastic_node import Outcome, _Worker
from tests.runtime.allocations import allocation
from tests.runtime.ray.test_elastic_node import WaitingRun


@pytest.fixture(autouse=True)
def own_signals(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(elastic_node, "_POLL_S", 0)
    with handlers_kept():
        yield


def test_a_worker_says_once_that_it_waits_and_whether_its_folder_is_there(tmp_path, capsys):
    worker = _Worker(tmp_path / "rnu", None, "e5_0", 0)
    waits = f"Waiting for a run in {tmp_path / 'rnu'} that takes workers."
    for _ in range(2):
        worker._wait_for_lease()
    assert capsys.readouterr().err.splitlines() == [f"{waits} No such folder can be seen yet."]
    ElasticFolder(tmp_path / "rnu").open()
    for _ in range(2):
        worker._wait_for_lease()
    assert capsys.readouterr().err.splitlines() == [waits]


def test_a_worker_that_no_run_has_taken_leaves_at_the_first_signal_and_says_so(tmp_path, capsys):
    worker = _Worker(tmp_path, None, "e5_0", 60)
    signal.raise_signal(signal.SIGINT)
    assert worker.run() == Outcome.MAY_RETURN
    assert capsys.readouterr().err.endswith("No run has taken this worker: it leaves at once.\n")


def test_a_worker_that_heard_no_signal_leaves_when_its_time_is_over(tmp_path: Path) -> None:
    worker = _Worker(
        tmp_path, allocation(tmp_path, end_time=time.time() + LEAVES_BEFORE_LIMIT_S, grace_s=15.0), "e5_0", 60
    )
    assert worker.run() == Outcome.MAY_RETURN


def test_a_second_ctrl_c_ends_a_worker_in_a_job_too(tmp_path: Path) -> None:
    worker = _Worker(tmp_path, allocation(tmp_path, grace_s=600.0), "e5_0", 60)
    signal.raise_signal(signal.SIGINT)
    first = worker._end_time
    signal.raise_signal(signal.SIGINT)
    assert first is not None
    assert worker._end_time is not None
    assert worker._end_time < first - 20


def test_a_worker_whose_run_has_left_it_waits_shorter_than_its_patience_for_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = WaitingRun(tmp_path / "run")
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(elastic_node, "_RUN_LEFT_WAIT_S", 0.1)
    with ExitStack() as alive:
        alive.callback(run.close)
        alive.enter_context(run.folder.renewed(run.lease))
        monkeypatch.setattr(_Worker, "_join", lambda *_: SimpleNamespace(stop=lambda: None))
        monkeypatch.setattr(_Worker, "_serve", lambda *_: alive.close())
        assert _Worker(run.run_dir, None, "e5_0", 5).run() == Outcome.RUN_LEFT
    assert capsys.readouterr().err.endswith("No run has taken this worker for 0.1 s.\n")
