"""Which rollout workers an attempt sees, and what it leaves to them when it ends."""

from __future__ import annotations

import asyncio
import errno
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import EngineFailed, Interrupted, Preempted, WorldError
from rollpacker.core.ids import WorkerId
from rollpacker.runtime.job import elastic_folder
from rollpacker.runtime.job.elastic_folder import ElasticFolder, Fingerprint, Lease, WorkerReport
from rollpacker.runtime.ray import elastic_members
from rollpacker.runtime.ray.elastic_members import RayMembers, _Bounded, open_members
from tests.runtime.driving import until

SAME = Fingerprint(code="a", python="b", ray="c", run="d", engine="e")


async def an_attempt(run_dir: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None) -> None:
    """Take workers until the lease has been renewed, and end so."""
    monkeypatch.setattr(elastic_members, "fingerprint_here", lambda _: SAME)
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(RayMembers, "watch", lambda _: None)
    config = SimpleNamespace(run=SimpleNamespace(dir=run_dir))
    rendezvous = SimpleNamespace(folder=run_dir / "jobs" / "12.0.0", token_file=run_dir / "token")
    cluster = SimpleNamespace(rendezvous=rendezvous, address="host:1")
    async with open_members(config, cluster, SimpleNamespace()):
        async with asyncio.timeout(60):
            while not ElasticFolder(run_dir).lease().num_renewals:  # noqa: ASYNC110  (a thread renews it)
                await asyncio.sleep(0.01)
        if error is not None:
            raise error


@pytest.mark.parametrize(
    ("error", "is_job", "is_over"),
    [
        (None, True, True),
        (Preempted("preempted"), True, False),
        (WorldError("node2 is lost"), True, False),
        (asyncio.CancelledError(), True, False),  # as the watch over the nodes ends what it guards
        (WorldError("node2 is lost"), False, True),
        (Interrupted("interrupted"), True, True),
        (ZeroDivisionError(), True, True),
    ],
    ids=repr,
)
def test_workers_wait_for_the_next_attempt_where_one_may_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, is_job: bool, is_over: bool
) -> None:
    allocation = SimpleNamespace(requeue_file=tmp_path / "requeue") if is_job else None
    monkeypatch.setattr(elastic_members, "current_allocation", lambda _: allocation)
    attempt = an_attempt(tmp_path, monkeypatch, error)
    if error is None:
        asyncio.run(attempt)
    else:
        with pytest.raises(type(error)):
            asyncio.run(attempt)
    folder = ElasticFolder(tmp_path)
    assert folder.lease() is None
    assert folder.is_over() == is_over


@pytest.mark.parametrize("error", [Preempted("preempted"), ZeroDivisionError()], ids=repr)
@pytest.mark.parametrize("failure", ["refuses", "hangs"])
def test_a_folder_that_fails_at_the_end_changes_nothing_of_how_the_run_ends(tmp_path, monkeypatch, error, failure):
    def fail(folder: ElasticFolder) -> None:
        if failure == "hangs":
            threading.Event().wait()
        lease = folder.path / "lease.json"  # as on a file system that has become read-only
        lease.unlink()
        lease.mkdir()
        withdraw(folder)

    withdraw = ElasticFolder.withdraw_lease
    monkeypatch.setattr(ElasticFolder, "withdraw_lease", fail)
    monkeypatch.setattr(elastic_members, "_CLOSING_S", 0.1)
    with pytest.raises(type(error)):
        asyncio.run(an_attempt(tmp_path, monkeypatch, error))


def test_a_renewal_that_hangs_does_not_hold_the_run_up(tmp_path, monkeypatch):
    monkeypatch.setattr(elastic_folder, "_CLOSING_S", 0.1)
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0)
    renewing, give = threading.Event(), ElasticFolder.give_lease

    def give_once(folder: ElasticFolder, lease: Lease) -> None:
        if lease.num_renewals:
            renewing.set()
            threading.Event().wait()
        give(folder, lease)

    monkeypatch.setattr(ElasticFolder, "give_lease", give_once)
    lease = Lease(attempt="7.0.0", head_address="host:1", token_file=tmp_path / "token", fingerprint=SAME)
    with ElasticFolder(tmp_path).renewed(lease):
        assert renewing.wait(60)


class Seen:
    """A run that looks for workers, the nodes of its Ray, and what is read for it."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch, silence_s: float = 60.0) -> None:
        self.notes: list[str] = []
        self.pins: list[str] = []
        self.read: list[str] = []
        self.folder = ElasticFolder(run_dir)
        self.folder.open()
        config = SimpleNamespace(elastic=SimpleNamespace(silence_s=silence_s))
        context = SimpleNamespace(note=self.notes.append)
        self.members = RayMembers(config, self.folder, "7.0.1", context)
        monkeypatch.setattr(elastic_members.ray, "nodes", self._nodes)
        monkeypatch.setattr(elastic_members, "_LOOK_S", 0)
        read = elastic_folder._read
        monkeypatch.setattr(elastic_folder, "_read", lambda file, kind: self.read.append(file.stem) or read(file, kind))

    def _nodes(self) -> list[dict[str, object]]:
        return [{"Alive": True, "Resources": {pin: 1.0}} for pin in self.pins]

    def report(self, worker: str, **other: object) -> None:
        given = {"attempt": "7.0.1", "node": "n1", "stage": "in the run", "num_engines": 1} | other
        self.folder.report(WorkerReport(worker=WorkerId(worker), **given))

    def look(self) -> list[str]:
        """Look once; gives whose reports were read."""
        self.read.clear()
        self.members._take(*self.members._look())
        return self.read


async def test_reports_that_say_nothing_new_are_read_once(tmp_path, monkeypatch):
    seen = Seen(tmp_path, monkeypatch)
    seen.pins = ["elastic-e9_0-r1", "elastic-e9_1-r0"]
    seen.report("e8_0-r0", attempt="7.0.0")
    seen.report("e9_0-r0", has_left=True)  # before it was ever seen
    seen.report("e9_0-r1")
    seen.report("e9_1-r0")
    seen.report("e9_2-r0", mismatch="Ray ended.", has_left=True)
    assert seen.look() == ["e8_0-r0", "e9_0-r0", "e9_0-r1", "e9_1-r0", "e9_2-r0"]
    assert [change.worker for change in await seen.members.changes()] == ["e9_0-r1", "e9_1-r0", "e9_2-r0"]
    seen.pins.remove("elastic-e9_1-r0")
    assert seen.look() == ["e9_0-r1", "e9_1-r0", "e9_2-r0"]
    await seen.members.dismiss(WorkerId("e9_2-r0"), "Ray ended.", may_return=False)
    assert seen.look() == ["e9_0-r1"]


async def test_a_run_that_cannot_look_for_workers_says_so_once_each_time(tmp_path, monkeypatch):
    seen = Seen(tmp_path, monkeypatch)
    looks, look = [], RayMembers._look

    def look_or_fail(members: RayMembers) -> object:
        looks.append(len(looks))
        if looks[-1] in {0, 1, 3, 4}:
            raise OSError(errno.ESTALE, "Stale file handle")
        return look(members)

    monkeypatch.setattr(RayMembers, "_look", look_or_fail)
    seen.members.watch()
    await until(lambda: len(looks) > 6)
    seen.members.close()
    assert len(seen.notes) == 2
    assert seen.notes[0].endswith(f"{seen.folder.path} cannot be read: Stale file handle.")


async def test_a_look_that_takes_too_long_is_told_with_the_key_that_sets_that_time(tmp_path, monkeypatch):
    seen = Seen(tmp_path, monkeypatch, silence_s=0.05)
    monkeypatch.setattr(RayMembers, "_look", lambda _: threading.Event().wait())
    seen.members.watch()
    await until(lambda: seen.notes)
    seen.members.close()
    assert "takes longer than elastic.silence_s=0.05" in seen.notes[0]


async def test_an_engine_that_does_not_answer_in_time_is_told_with_the_key_that_sets_that_time():
    engine = _Bounded(SimpleNamespace(stats=asyncio.Event().wait), "e1_0-r0.0", asyncio.timeout, silence_s=0.01)
    with pytest.raises(EngineFailed) as failed:
        await engine.stats()
    assert "elastic.silence_s" in failed.value.allowed
