"""Calls to actors have a deadline, whose clock stands still while the process is stopped."""

import asyncio

import pytest

from rollpacker.config.sections.backend import DeadlineSection
from rollpacker.config.sections.engine import EngineSection
from rollpacker.core.ids import EngineId
from rollpacker.protocols.backend import Fleet
from rollpacker.runtime.rollout.engine_sets import EngineSets
from rollpacker.runtime.rollout.fleet_parts import FleetParts
from rollpacker.runtime.rollout.starts import ask_each, within_or_failed
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.standstill import LATE_S, stoppable

ENGINE = EngineId("engine-0")


class Engine:
    """Answers when it may."""

    def __init__(self):
        self.may_answer = asyncio.Event()

    async def sleep(self):
        await self.may_answer.wait()


async def called(limit, engine, lost):
    await within_or_failed(limit, 3 * LATE_S, f"{ENGINE} to sleep", engine.sleep())


async def asked(limit, engine, lost):
    await ask_each(
        limit, {ENGINE: engine}, "to sleep", Engine.sleep, 3 * LATE_S, lose=lambda *of_it: lost.append(of_it)
    )


async def ordered(limit, engine, lost):
    parts = FleetParts(
        fleets={1: Fleet(engines={ENGINE: engine})},
        replace_engine=None,
        engine=EngineSection(),
        deadlines=DeadlineSection(engine_call_s=3 * LATE_S),
        limit=limit,
        straggler_s=1.0,
    )
    await EngineSets(parts, lambda _: ENGINE, lambda *of_it: lost.append(of_it)).each(
        "to sleep", [ENGINE], Engine.sleep
    )


@pytest.mark.parametrize("call", [called, asked, ordered])
async def test_time_in_which_the_process_was_stopped_is_no_silence_of_an_engine(tmp_path, call):
    watchdog, engine, lost = Watchdog(tmp_path / "stall.txt", 60), Engine(), []
    async with stoppable(watchdog) as stop:
        calling = asyncio.create_task(call(watchdog.limit, engine, lost))
        for stopped_s in (0.0, LATE_S, 1000.0, LATE_S):
            await stop(stopped_s)
        engine.may_answer.set()
        await calling
    assert lost == []
