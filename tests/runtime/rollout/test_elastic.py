"""When lent engines come back, and what a step with rollout workers is said to have taken."""

import asyncio
from types import SimpleNamespace

import pytest

from rollpacker.core.commands import ReclaimEngines
from rollpacker.core.events import EnginesReturned
from rollpacker.core.ids import EngineId, PromptId, RequestId
from rollpacker.runtime.rollout.aside import Aside
from rollpacker.runtime.rollout.batch import Batch
from rollpacker.runtime.rollout.elastic import Elastic
from rollpacker.runtime.rollout.elastic_times import elastic_times, num_moved
from rollpacker.runtime.rollout.request_book import RequestBook, RequestRecord, Stretch
from rollpacker.runtime.waiting.clock import RunClock

ENGINES = LOCAL, OTHER = (EngineId("engine-0"), EngineId("engine-1"))
MEMBER = EngineId("e1_0-r0.0")
BETWEEN = {"local_share": 1.0, "began_at_s": 100.0, "ended_at_s": 200.0, "train_s": 40.0, "trainer_idle_s": 0.0}


class ScriptedSides:
    """Engines and trainer, which need some turns of the event loop to change places."""

    def __init__(self):
        self.done, self.told = [], []

    async def _take_turns(self, what):
        for _ in range(3):
            await asyncio.sleep(0)
        self.done.append(what)

    async def lend(self):
        await self._take_turns("engines leave")

    async def give_back(self):
        await self._take_turns("the trainer leaves")

    async def take_back(self, engine_ids):
        await self._take_turns("engines come")
        return engine_ids[:1]  # the other one is lost meanwhile


async def test_lent_engines_come_back_after_they_have_left_and_the_trainer_has():
    sides, errors = ScriptedSides(), []
    aside = Aside(on_error=errors.append)
    elastic = Elastic(
        sides,
        SimpleNamespace(are_any_expected=False),
        aside=aside,
        report=sides.told.append,
        on_reclaim=sides.give_back,
        clock=RunClock(),
        under_way=RequestBook,
    )
    aside.begin_in_turn(sides.lend(), "engines to be lent")
    elastic.carry_out(ReclaimEngines(round=4, engines=ENGINES))
    while aside.is_any:  # noqa: ASYNC110  (both have ended)
        await asyncio.sleep(0)
    assert errors == []
    assert sides.done == ["engines leave", "the trainer leaves", "engines come"]
    assert sides.told == [EnginesReturned(round=4, engines=ENGINES[:1])]


def request(sample: int) -> RequestId:
    return RequestId(0, PromptId(0, "p"), sample)


def record(sample: int, engine: EngineId, placed_at_s: float, finished_at_s: float | None) -> RequestRecord:
    response = None if finished_at_s is None else SimpleNamespace(num_tokens=10)
    return RequestRecord(
        request=request(sample),
        engine=engine,
        launched_at_s=placed_at_s,
        placed_at_s=placed_at_s,
        response=response,
        finished_at_s=finished_at_s,
    )


def stretch(sample: int, engine: EngineId, began_at_s: float, ended_at_s: float, end: str = "evicted") -> Stretch:
    return Stretch(
        request=request(sample), engine=engine, began_at_s=began_at_s, ended_at_s=ended_at_s, end=end, num_tokens=5
    )


def book(*entries: RequestRecord | Stretch) -> RequestBook:
    return RequestBook(
        requests={each.request: each for each in entries if isinstance(each, RequestRecord)},
        stretches=[each for each in entries if isinstance(each, Stretch)],
    )


def batch(*entries: RequestRecord | Stretch, max_staleness: int = 1) -> Batch:
    return Batch(
        begin=SimpleNamespace(step=3),
        policy_version=3,
        began_at_s=100.0,
        prompts={},
        book=book(*entries),
        max_staleness=max_staleness,
        generated_at_s=190.0,
    )


def test_a_step_of_an_asynchronous_run_counts_of_every_stay_what_lies_in_its_own_time():
    of_batch = batch(
        record(0, LOCAL, 20.0, 110.0),
        stretch(1, LOCAL, 60.0, 120.0),
        record(1, MEMBER, 30.0, 80.0),  # the step before counted it
    )
    under_way = book(
        record(2, MEMBER, 90.0, None),
        record(3, LOCAL, 150.0, 160.0),
        stretch(4, LOCAL, 170.0, 175.0),
        record(4, LOCAL, 185.0, None),
    )
    times = elastic_times(of_batch, under_way, **BETWEEN)
    assert (times.local_engine_s, times.member_engine_s) == (20.0 + 10.0 + 5.0 + 15.0, 100.0)
    assert (times.local_tokens, times.member_tokens) == (15, 10), "those of the batch"
    assert times.fleet_idle_s == 0.0, "workers generate ahead"


def test_a_step_of_a_synchronous_run_counts_its_rollout_and_what_its_workers_wait_for_its_end():
    of_batch = batch(record(0, LOCAL, 100.0, 130.0), record(1, MEMBER, 110.0, 190.0), max_staleness=0)
    times = elastic_times(of_batch, RequestBook(), **BETWEEN)
    assert (times.local_engine_s, times.member_engine_s, times.fleet_idle_s) == (30.0, 80.0, 10.0)


def test_engines_of_another_degree_count_as_many_as_their_gpus_are_configured_ones():
    of_batch = batch(record(0, LOCAL, 100.0, 130.0), record(1, MEMBER, 110.0, 190.0), max_staleness=0)
    times = elastic_times(of_batch, RequestBook(), **{**BETWEEN, "local_share": 0.5})
    assert (times.local_engine_s, times.member_engine_s) == (15.0, 80.0)


@pytest.mark.parametrize(("max_staleness", "idle_s"), [(0, 10.0), (1, None)])
def test_what_workers_wait_for_the_end_of_a_step_is_no_column_where_they_generate_ahead(max_staleness, idle_s):
    told, of_batch = [], batch(record(0, MEMBER, 110.0, 190.0), max_staleness=max_staleness)
    elastic = Elastic(
        SimpleNamespace(),
        SimpleNamespace(are_any_expected=True, take_turnover=lambda: (0, 100.0)),
        aside=SimpleNamespace(),
        report=told.append,
        on_reclaim=SimpleNamespace(),
        clock=SimpleNamespace(now=lambda: 200.0),
        under_way=lambda: book(record(1, MEMBER, 190.0, None)) if max_staleness else RequestBook(),
    )
    row = elastic.report_step(of_batch, local_share=1.0, train_s=5.0, trainer_idle_s=0.0)
    assert row["member_idle_s"] == idle_s
    [measured] = told
    assert measured.fleet_idle_s == (idle_s or 0.0)
    assert measured.member_engine_s == (90.0 if max_staleness else 80.0)


@pytest.mark.parametrize("max_staleness", [0, 1])
def test_a_request_has_moved_when_it_goes_on_on_another_engine_than_before(max_staleness):
    of_batch = batch(
        stretch(0, LOCAL, 0.0, 10.0),  # suspended at an update
        stretch(0, LOCAL, 20.0, 30.0),
        record(0, OTHER, 40.0, 50.0),
        stretch(1, MEMBER, 0.0, 10.0, "lost"),
        stretch(1, LOCAL, 10.0, 20.0, "failed"),
        record(1, OTHER, 30.0, 40.0),
        stretch(2, LOCAL, 0.0, 10.0),
        stretch(3, LOCAL, 0.0, 10.0, "turn"),
        stretch(4, LOCAL, 0.0, 10.0),
        max_staleness=max_staleness,
    )
    under_way = book(
        stretch(2, OTHER, 10.0, 20.0),  # the next step's
        record(2, LOCAL, 30.0, None),
        record(3, OTHER, 30.0, None),
        record(4, LOCAL, 30.0, None),
    )
    assert num_moved(of_batch, under_way) == 3
