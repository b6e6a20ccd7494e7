"""What `rollpacker jobs` says of a run's rollout workers."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rollpacker.core.ids import WorkerId
from rollpacker.launch.elastic_status import workers_in_words
from rollpacker.runtime.job.elastic_folder import QUEUE_FILE, ElasticFolder, Fingerprint, Lease, Order, WorkerReport

FINGERPRINT = Fingerprint(code="c", python="3.11.2", ray="2.60.0", run="r", engine="e")


def report(worker: str, **other) -> WorkerReport:
    given = {"attempt": "7.0.0", "node": "n1", "stage": "in the run", "num_engines": 1} | other
    return WorkerReport(worker=WorkerId(worker), **given)


def test_a_run_without_workers_says_nothing(tmp_path):
    assert workers_in_words(tmp_path) == ""


def test_workers_of_this_attempt_are_counted_by_where_they_are(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    lease = Lease(attempt="7.0.0", head_address="n0:1", token_file=tmp_path / "token", fingerprint=FINGERPRINT)
    folder.give_lease(lease)
    mismatch = FINGERPRINT.difference(replace(FINGERPRINT, python="3.12.1"))
    assert mismatch == "The worker has another python 3.12.1 (the run has 3.11.2)."
    for each in (
        report("e9_0-r0", has_left=True),
        report("e9_0-r1"),
        report("e9_1-r0"),  # killed, and not queued again
        report("e9_2-r0", mismatch=mismatch),
        report("e4321_0-r0"),  # started from a shell
        report("e8_0-r0", attempt="6.0.0"),
    ):
        folder.report(each)
    folder.wish(4)
    (folder.path / QUEUE_FILE).write_text("9_0|RUNNING|None|1\n9_3|PENDING|Resources|2\n9_4|PENDING|Resources|N/A\n")
    assert workers_in_words(tmp_path) == f"2 in the run, 2 waiting (Resources), wish 4, 2 gone, 1 refused: {mismatch}"
    folder.finish()
    assert workers_in_words(tmp_path) == ""


def test_a_worker_that_was_killed_is_gone_when_its_element_comes_back_or_waits_again(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    lease = Lease(attempt="7.0.0", head_address="n0:1", token_file=tmp_path / "token", fingerprint=FINGERPRINT)
    folder.give_lease(lease)
    for life in range(9, 12):  # the tenth life is newer than the ninth
        folder.report(report(f"e9_0-r{life}"))
    folder.report(report("e9_1-r0", stage="joining"))
    folder.report(report("e9_1-r1", stage="joining"))
    folder.report(report("e9_2-r0"))
    assert workers_in_words(tmp_path) == "2 in the run, 1 joining, 3 gone"
    rows = ("9_0|RUNNING|None|1", "9_1|RUNNING|None|1", "9_2|PENDING|BeginTime|2")
    (folder.path / QUEUE_FILE).write_text("".join(f"{row}\n" for row in rows))
    assert workers_in_words(tmp_path) == "1 in the run, 1 joining, 1 waiting (BeginTime), 4 gone"
    (folder.path / QUEUE_FILE).write_text("9\n")
    assert workers_in_words(tmp_path) == "0 in the run, 6 gone"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE], ids=errno.errorcode.get)
def test_a_run_whose_elastic_folder_cannot_be_read_says_nothing(tmp_path, monkeypatch, number):
    folder = ElasticFolder(tmp_path)
    folder.open()
    listed = Path.iterdir

    def list_or_fail(path):
        if path == folder.path:
            raise OSError(number, os.strerror(number))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", list_or_fail)
    assert workers_in_words(tmp_path) == ""


def test_what_workers_of_earlier_attempts_left_goes_aside_and_their_names_do_not_come_again(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    worker = folder.claim_life("e9_1")
    folder.report(report(worker))
    folder.order(worker, Order(reason="it is surplus", may_return=True))
    folder.reopen()
    assert list(folder.current_reports()) == []
    assert folder.order_of(worker) is None
    assert [(each.worker, each.node) for each in folder.reports()] == [("e9_1-r0", "n1")]
    (folder.path / "earlier" / "e9_1-r0.json").unlink()  # as in a listing from before
    assert folder.claim_life("e9_1") == "e9_1-r1"


def test_what_a_killed_writer_left_is_no_report_and_the_next_attempt_removes_its_own(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    folder.report(report("e9_1-r0"))
    whole = (folder.path / "workers" / "e9_1-r0.json").read_bytes()
    (folder.path / "workers" / ".tmp-0a1b2c3d-e9_1-r0.json").write_bytes(whole)
    (folder.path / "orders" / ".tmp-0a1b2c3d-e9_1-r0.json").touch()
    (folder.path / ".tmp-0a1b2c3d-lease.json").touch()
    assert [each.worker for each in folder.reports()] == ["e9_1-r0"]
    folder.reopen()
    assert [each.worker for each in folder.reports()] == ["e9_1-r0"]
    assert not [path for place in (folder.path, folder.path / "orders") for path in place.glob(".tmp-*")]


def test_a_wish_is_of_one_attempt(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    folder.wish(4)
    (folder.path / QUEUE_FILE).write_text("9_0|RUNNING|None|1\n")
    folder.reopen()
    assert folder.wished() is None
    assert not (folder.path / QUEUE_FILE).exists()


def test_every_joining_of_an_element_is_a_life_of_its_own_and_other_users_can_enter_nothing(tmp_path):
    folder = ElasticFolder(tmp_path)
    folder.open()
    assert [folder.claim_life("e9_1") for _ in range(3)] == ["e9_1-r0", "e9_1-r1", "e9_1-r2"]
    assert folder.claim_life("e9_10") == "e9_10-r0"
    assert {part.stat().st_mode & 0o077 for part in (folder.path, *folder.path.iterdir())} == {0}
