"""What the driver asks of rollout workers, and what it makes of their answers and of their silence."""

import asyncio
from types import SimpleNamespace

import pytest

from rollpacker.core.commands import DismissWorker, FetchPolicy, StartMember
from rollpacker.core.errors import EngineFailed, EngineRaised
from rollpacker.core.events import (
    EngineLost,
    EngineProgress,
    EngineStarted,
    EngineStartFailed,
    EngineUpdated,
    FetchFailed,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, WorkerId
from rollpacker.protocols.arrivals import Arrivals
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.rollout.inbox import Inbox
from rollpacker.runtime.rollout.interval_log import IntervalLog
from rollpacker.runtime.rollout.members import MemberEngines
from rollpacker.runtime.rollout.request_book import RequestBook
from rollpacker.runtime.waiting.clock import RunClock
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.rollout.test_request_book import FIRST, REQUEST, increment

WORKER = WorkerId("e1_0-r0")
SILENCE_S = 5.0


class ScriptedEngine:
    """Reports once a second, until a test makes it silent."""

    def __init__(self):
        self.is_silent = False
        self.to_report = []
        self.checksum = "right"
        self.loads = asyncio.Event()
        self.loads.set()
        self.num_loading = self.num_steps = 0

    async def stats(self):
        await self.loads.wait()  # one thread does both
        return SimpleNamespace(kv_tokens_capacity=1000, num_decode_steps=self.num_steps)

    async def collect(self):
        await asyncio.Event().wait()

    async def increments(self):
        await asyncio.sleep(1)
        if self.is_silent:
            await asyncio.Event().wait()
        reported, self.to_report = self.to_report, []
        return reported

    async def progress(self):
        await self.loads.wait()
        if self.is_silent:
            await asyncio.Event().wait()
        return EngineProgress(FIRST, 1000, ())

    async def load_weights(self, _):
        self.num_loading += 1
        await self.loads.wait()
        return self.checksum


class ScriptedMembers:
    """Workers that do what a test says."""

    def __init__(self):
        self.arrivals = Arrivals()
        self.engines = {}
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.dismissed = []

    async def changes(self):
        return await self.arrivals.collect()

    async def start_engine(self, worker, engine):
        await self.may_start.wait()
        if worker == "e1_9-r0":
            raise EngineFailed("There is no such worker.")
        self.engines[engine] = ScriptedEngine()
        return self.engines[engine]

    async def dismiss(self, worker, _, *, may_return):
        self.dismissed.append((worker, may_return))
        await asyncio.Event().wait()  # it hangs


class OneShelf:
    """Has every version but one for which a newer one has come."""

    superseded = None

    def __init__(self, newest=3):
        self.newest = newest

    async def lay_out(self):
        return self.newest

    async def shelf(self, policy_version):
        if policy_version == self.superseded:
            return None
        return Weights(policy_version=policy_version, checksum="right", num_bytes=1, payload=None)


class Fixture:
    """A driver's side with everything that it tells written down."""

    def __init__(self):
        self.members = ScriptedMembers()
        self.told, self.gone, self.inbox = [], [], Inbox()
        self.book = RequestBook()
        self.book.launched(REQUEST, FIRST, 0.0)
        clock = RunClock()
        self.side = MemberEngines(
            SimpleNamespace(members=self.members, limit=asyncio.timeout, silence_s=SILENCE_S, keeps_tokens=True),
            report=self.told.append,
            on_gone=self.gone.append,
            book_of=lambda _: self.book,
            inbox=self.inbox,
            clock=clock,
            interval_log=IntervalLog(clock),
            note=lambda _: None,
        )

    async def started(self):
        """An engine of the worker that is up and has the first policy at hand."""
        self.shelf = OneShelf()
        await self.side.lay_out(self.shelf)
        self.side.start()
        self.side.start_member(StartMember(worker=WORKER, engine=FIRST))
        await asyncio.sleep(0.5)
        return self.members.engines[FIRST]

    async def fetched(self, policy_version=3):
        """Its engine is told to fetch a policy, and has had time to."""
        self.side.fetch(FetchPolicy(engine=FIRST, policy_version=policy_version))
        await asyncio.sleep(0.5)


def scripted(test):
    """Run a test in virtual time: silences of seconds take none."""

    def run():
        async def main():
            fixture = Fixture()
            try:
                await test(fixture)
                assert fixture.inbox._facts._items == [], "errors that are no engine's failure"
            finally:
                await fixture.side.stop()
                await fixture.inbox.stop()

        run_in_virtual_time(main())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@scripted
async def test_an_engine_that_starts_is_told_with_its_memory_and_one_that_does_not_too(fixture):
    await fixture.started()
    other = EngineId("e1_9-r0.0")
    fixture.side.start_member(StartMember(worker=WorkerId("e1_9-r0"), engine=other))
    await asyncio.sleep(0.5)
    assert fixture.told == [EngineStarted(engine=FIRST, kv_tokens=1000), EngineStartFailed(engine=other)]
    assert list(fixture.side.present) == [FIRST]


@scripted
async def test_nobody_waits_for_the_progress_of_an_engine_longer_than_for_its_reports(fixture):
    engine = await fixture.started()
    await fixture.fetched()
    assert list(await fixture.side.progress()) == [EngineProgress(FIRST, 1000, ())]
    engine.is_silent = True
    assert list(await asyncio.wait_for(fixture.side.progress(), SILENCE_S + 0.1)) == []
    assert fixture.told[-1] == EngineLost(engine=FIRST)


@scripted
async def test_an_engine_that_loads_a_policy_is_asked_nothing_that_it_cannot_answer_meanwhile(fixture):
    engine = await fixture.started()
    await fixture.fetched()
    engine.num_steps = 7
    assert [stats.num_decode_steps for stats in (await fixture.side.stats()).values()] == [7]
    fixture.shelf.newest = 4
    await fixture.side.lay_out(fixture.shelf)
    engine.loads.clear()
    await fixture.fetched()
    assert [stats.num_decode_steps for stats in (await fixture.side.stats()).values()] == [7], "as it said last"
    assert list(await fixture.side.progress()) == []
    await asyncio.sleep(SILENCE_S)
    engine.loads.set()
    await asyncio.sleep(0.5)
    assert [type(event) for event in fixture.told] == [EngineStarted, EngineUpdated, EngineUpdated]
    assert list(await fixture.side.progress()) == [EngineProgress(FIRST, 1000, ())]


@scripted
async def test_an_engine_holds_a_policy_only_if_the_checksum_says_so(fixture):
    engine = await fixture.started()
    await fixture.fetched()
    engine.checksum = "torn"
    await fixture.fetched()
    assert fixture.told[1:] == [
        EngineUpdated(engine=FIRST, policy_version=3),
        FetchFailed(engine=FIRST, policy_version=3),
    ]


@scripted
async def test_a_policy_that_a_newer_one_takes_the_place_of_was_not_missed_before_it_was_fetched_or_meanwhile(fixture):
    engine = await fixture.started()
    fixture.shelf.superseded = 3
    await fixture.fetched()
    fixture.shelf.superseded = None

    async def lose_it(weights):
        fixture.shelf.superseded = 3
        raise EngineRaised("A bucket is gone.")

    engine.load_weights = lose_it
    await fixture.fetched()
    assert len(fixture.told) == 1  # that it started
    await fixture.fetched(4)
    assert fixture.told[1:] == [FetchFailed(engine=FIRST, policy_version=4)]


@scripted
async def test_a_newer_order_to_fetch_takes_the_place_of_one_that_hangs(fixture):
    engine = await fixture.started()
    engine.loads.clear()
    await fixture.fetched()
    await fixture.fetched(4)
    engine.loads.set()
    await asyncio.sleep(0.5)
    assert engine.num_loading == 2
    assert fixture.told[1:] == [EngineUpdated(engine=FIRST, policy_version=4)]


@scripted
async def test_what_an_engine_reports_is_kept_and_its_silence_is_its_loss(fixture):
    engine = await fixture.started()
    engine.to_report = [increment(0, 4), increment(4, 6)]
    await asyncio.sleep(2)
    assert fixture.book.requests[REQUEST].num_known == 6
    engine.is_silent = True
    await asyncio.sleep(SILENCE_S - 1)
    assert EngineLost(engine=FIRST) not in fixture.told
    await asyncio.sleep(2.5)
    assert fixture.told[-1] == EngineLost(engine=FIRST)
    assert fixture.gone == [FIRST]
    assert not fixture.side.present


@scripted
async def test_a_worker_that_is_dismissed_is_not_heard_any_more_though_its_dismissal_hangs(fixture):
    engine = await fixture.started()
    engine.loads.clear()
    fixture.side.fetch(FetchPolicy(engine=FIRST, policy_version=3))
    await asyncio.sleep(0.1)
    fixture.side.dismiss(DismissWorker(worker=WORKER, reason="It is surplus.", may_return=False))
    engine.loads.set()
    engine.is_silent = True
    await asyncio.sleep(2 * SILENCE_S)
    assert fixture.members.dismissed == [(WORKER, False)]
    assert fixture.gone == [FIRST]
    assert fixture.told == [EngineStarted(engine=FIRST, kv_tokens=1000)]
    assert fixture.side.lose(FIRST, EngineFailed("late"))
    assert not fixture.side.lose(EngineId("engine-0"), EngineFailed("of the trainer's allocation"))


@scripted
async def test_a_start_that_hangs_delays_no_other_worker(fixture):
    fixture.members.may_start.clear()
    fixture.side.start()
    fixture.side.start_member(StartMember(worker=WORKER, engine=FIRST))
    await asyncio.sleep(1)
    fixture.members.arrivals.put([WorkerArrived(worker=WorkerId("e1_1-r0"), num_engines=1)])
    fixture.members.arrivals.put([WorkerLeft(worker=WORKER)])
    await asyncio.sleep(1)
    assert fixture.told == [WorkerArrived(worker=WorkerId("e1_1-r0"), num_engines=1), WorkerLeft(worker=WORKER)]
    fixture.members.may_start.set()
    await asyncio.sleep(1)
    assert len(fixture.told) == 2


@scripted
async def test_service_is_counted_from_the_policy_to_the_next_one_or_the_loss(fixture):
    await fixture.started()
    fixture.side.fetch(FetchPolicy(engine=FIRST, policy_version=3))
    await asyncio.sleep(10)
    assert fixture.side.take_turnover() == (0, pytest.approx(10))
    await asyncio.sleep(1)
    await fixture.side.lay_out(OneShelf())  # again, after a checkpoint
    await asyncio.sleep(1)
    await fixture.side.lay_out(OneShelf(newest=4))
    await asyncio.sleep(50)
    fixture.side.lose(FIRST, EngineFailed("gone"))
    assert fixture.side.take_turnover() == (1, pytest.approx(2))
