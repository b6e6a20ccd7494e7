"""Which engines hold new weights, and how long the slow ones are waited for."""

from __future__ import annotations

import asyncio

from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import EngineId
from rollpacker.sim.virtual_time import run_in_virtual_time
from rollpacker.transfer.confirmations import those_that_do_not_confirm

CHECKSUM = "1f"
STRAGGLER_S = 60.0


async def after(wait_s: float) -> str:
    await asyncio.sleep(wait_s)
    return CHECKSUM


async def dies() -> str:
    raise EngineFailed("Its process died.")


def lost(**answers) -> dict[EngineId, str]:
    by_engine = {EngineId(name): answer for name, answer in answers.items()}
    found = run_in_virtual_time(
        those_that_do_not_confirm(by_engine, policy_version=1, checksum=CHECKSUM, straggler_s=STRAGGLER_S)
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
