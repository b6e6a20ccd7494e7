"""A wait ends when nothing comes about, however often somebody looks."""

import asyncio

import pytest

from rollpacker.core.commands import FetchPolicy, MeasureProgress, ReclaimEngines, SetTimer, StartEngine, StartMember
from rollpacker.core.errors import DeadlineExceeded
from rollpacker.core.events import (
    EngineUpdated,
    FetchFailed,
    ProgressMeasured,
    RewardComputed,
    TimerFired,
    WorkerArrived,
    WorkerLeft,
)
from rollpacker.core.ids import EngineId, WorkerId
from rollpacker.runtime.rollout.awaiting import Awaiting
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.driving import driving
from tests.runtime.rollout.test_request_book import REQUEST
from tests.runtime.scripted import ScriptedEngine

ENGINE, WORKER = EngineId("e1_0-r0-0"), WorkerId("e1_0-r0")
STALL_S, EVERY_S = 60, 5
LOOK = TimerFired(timer="balance 0")
AGAIN = SetTimer(timer="balance 0", at_s=5.0)
ARRIVAL = WorkerArrived(worker=WORKER, num_engines=1)


def lasts_s(tmp_path, event, commands, until_s=3 * STALL_S):
    """How long a wait lasts in which the same happens every few seconds, for a while."""

    async def main():
        loop = asyncio.get_running_loop()
        wait = Awaiting(Watchdog(tmp_path / "stall.txt", 60), STALL_S, lambda: "8 responses of engine-0")
        for at_s in range(EVERY_S, until_s + 1, EVERY_S):
            loop.call_at(at_s, wait.note, event, commands)
            loop.call_at(at_s, wait.look)
        with pytest.raises(DeadlineExceeded, match="8 responses of engine-0"):
            await wait.until(lambda: False)
        wait.close()
        return loop.time()

    return run_in_virtual_time(main())


@pytest.mark.parametrize(
    ("event", "commands"),
    [
        (LOOK, (AGAIN,)),
        (LOOK, (MeasureProgress(round=0),)),
        (ProgressMeasured(round=0, engines=()), (AGAIN,)),
        (ARRIVAL, (StartMember(worker=WORKER, engine=ENGINE),)),
        (WorkerLeft(worker=WORKER), ()),
        (FetchFailed(engine=ENGINE, policy_version=0), (FetchPolicy(engine=ENGINE, policy_version=0),)),
    ],
)
def test_time_that_passes_and_workers_that_come_and_go_do_not_prolong_a_wait(tmp_path, event, commands):
    assert lasts_s(tmp_path, event, commands) == STALL_S


@pytest.mark.parametrize(
    ("event", "commands"),
    [
        (RewardComputed(request=REQUEST, reward=1.0), ()),
        (EngineUpdated(engine=ENGINE, policy_version=0), ()),
        (TimerFired(timer="start engine-0-r1"), (StartEngine(slot=EngineId("engine-0"), engine=ENGINE),)),
        (TimerFired(timer="reclaim of round 0"), (AGAIN, ReclaimEngines(round=0, engines=(ENGINE,)))),
    ],
)
def test_what_an_engine_or_the_reward_answers_and_what_is_ordered_of_them_does(tmp_path, event, commands):
    assert lasts_s(tmp_path, event, commands) == 4 * STALL_S


def test_a_rollout_that_hangs_is_given_up_though_its_timers_fire(tmp_path):
    async def main():
        async with driving(tmp_path, [ScriptedEngine("engine-0", lambda _: None)], stall_s=STALL_S) as driver:

            def look():
                driver._scheduler._timers.at_s[LOOK.timer] = driver._clock.now()
                driver._take_aside(LOOK)
                driver._aside.begin(asyncio.sleep(0), "progress of the engines")

            loop = asyncio.get_running_loop()
            for at_s in range(EVERY_S, 3 * STALL_S, EVERY_S):
                loop.call_at(at_s, look)
            with pytest.raises(DeadlineExceeded, match="8 responses of engine-0"):
                await driver.next_batch(0)
            return loop.time()

    assert run_in_virtual_time(main()) == pytest.approx(STALL_S)
