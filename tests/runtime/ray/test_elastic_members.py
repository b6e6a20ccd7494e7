"""What an attempt that ends leaves to the rollout workers of its run."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import EngineFailed, Interrupted, Preempted, WorldError
from rollpacker.runtime.job import elastic_folder
from rollpacker.runtime.job.elastic_folder import ElasticFolder, Fingerprint
from rollpacker.runtime.ray import elastic_members
from rollpacker.runtime.ray.elastic_members import RayMembers, _Bounded, open_members

SAME = Fingerprint(code="a", python="b", ray="c", run="d", engine="e")


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
    monkeypatch.setattr(elastic_members, "fingerprint_here", lambda _: SAME)
    monkeypatch.setattr(elastic_folder, "RENEWAL_S", 0.01)
    monkeypatch.setattr(RayMembers, "watch", lambda _: None)
    config = SimpleNamespace(run=SimpleNamespace(dir=tmp_path))
    rendezvous = SimpleNamespace(folder=tmp_path / "jobs" / "12.0.0", token_file=tmp_path / "token")

    async def attempt() -> None:
        async with open_members(config, SimpleNamespace(rendezvous=rendezvous, address="host:1"), SimpleNamespace()):
            assert ElasticFolder(tmp_path).lease() is not None
            async with asyncio.timeout(60):
                while not ElasticFolder(tmp_path).lease().num_renewals:  # noqa: ASYNC110  (a thread renews it)
                    await asyncio.sleep(0.01)
            if error is not None:
                raise error

    if error is None:
        asyncio.run(attempt())
    else:
        with pytest.raises(type(error)):
            asyncio.run(attempt())
    folder = ElasticFolder(tmp_path)
    assert folder.lease() is None
    assert folder.is_over() == is_over


async def test_an_engine_that_does_not_answer_in_time_is_told_with_the_key_that_sets_that_time():
    engine = _Bounded(SimpleNamespace(stats=asyncio.Event().wait), "e1_0-r0.0", silence_s=0.01)
    with pytest.raises(EngineFailed) as failed:
        await engine.stats()
    assert "elastic.silence_s" in failed.value.allowed
