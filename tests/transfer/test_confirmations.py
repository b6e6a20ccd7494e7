"""Which engines hold new weights, and how long the slow ones are waited for."""

from __future__ import annotations

import asyncio

import pytest

from rollpacker.core.errors import EngineFailed, WeightSyncFailed
from rollpacker.core.ids import EngineId
from rollpacker.protocols.weights import Weights
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.transfer.confirmations import those_that_do_not_confirm
from rollpacker.transfer.snapshots import SnapshotSync
from tests.runtime.standstill import LATE_S, stoppable

CHECKSUM = "1f"
STRAGGLER_S = 60.0


async def after(wait_s: float) -> str:
    await asyncio.sleep(wait_s)
    return CHECKSUM


async def claims(checksum: str) -> str:
    return checksum


async def after_all(answer: asyncio.Future[str]) -> str:
    return await answer


async def dies() -> str:
    raise EngineFailed("Its process died.")


def lost(*, are_all=True, **answers) -> dict[EngineId, str]:
    by_engine = {EngineId(name): answer for name, answer in answers.items()}
    found = run_in_virtual_time(
        those_that_do_not_confirm(
            by_engine, policy_version=1, checksum=CHECKSUM, straggler_s=STRAGGLER_S, are_all=are_all
        )
    )
    return {engine: error.problem for engine, error in found.items()}


def test_the_rest_may_take_so_long_after_half_of_the_engines_have_answered():
    assert lost(a=after(1), b=after(60)) == {}
    assert lost(a=after(1), b=after(62)) == {"b": "b has not loaded the weights 60 s after half of the engines had."}


def test_engines_that_failed_do_not_make_the_others_late():
    died = {"b": "Its process died."}
    assert lost(a=after(100), b=dies()) == died
    assert lost(a=after(100), b=dies(), c=after(150)) == died
    assert lost(a=after(1), b=dies(), c=after(70)).keys() == {"b", "c"}


def test_half_is_counted_over_the_engines_that_have_not_failed():
    assert lost(a=after(1), b=after(2), c=after(50), d=after(100)).keys() == {"d"}
    assert lost(a=after(1), b=dies(), c=dies(), d=after(100)).keys() == {"b", "c", "d"}


def test_an_engine_that_holds_something_else_is_lost_and_ends_the_run_only_if_no_other_may_hold_the_version():
    torn = {"b": "b holds weights with checksum 2e; version 1 has 1f."}
    assert lost(a=claims(CHECKSUM), b=claims("2e")) == torn
    assert lost(b=claims("2e"), are_all=False) == torn
    with pytest.raises(WeightSyncFailed, match="No engine holds what the trainer sent"):
        lost(a=dies(), b=claims("2e"))


async def test_time_in_which_the_process_was_stopped_is_not_charged_to_late_engines(tmp_path):
    answer = asyncio.get_running_loop().create_future()
    answers = {EngineId("a"): claims(CHECKSUM), EngineId("b"): after_all(answer)}
    async with stoppable(Watchdog(tmp_path / "stall.txt", 60)) as stop:
        asking = asyncio.create_task(
            those_that_do_not_confirm(answers, policy_version=1, checksum=CHECKSUM, straggler_s=STRAGGLER_S)
        )
        for stopped_s in (0, LATE_S, 1000.0, LATE_S):
            await stop(stopped_s)
        answer.set_result(CHECKSUM)
        assert await asking == {}


class Exporting:
    async def export_weights(self) -> Weights:
        return Weights(policy_version=1, checksum=CHECKSUM, num_bytes=1, payload=None)


class Holding:
    def __init__(self, checksum: str) -> None:
        self._checksum = checksum

    async def load_weights(self, _: Weights) -> str:
        return self._checksum


async def test_an_engine_that_is_served_later_and_holds_something_else_is_lost_alone():
    sync = SnapshotSync(Exporting(), STRAGGLER_S)
    await sync.publish({EngineId("a"): Holding(CHECKSUM)})
    assert list((await sync.serve(EngineId("b"), Holding("2e"))).lost) == ["b"]
