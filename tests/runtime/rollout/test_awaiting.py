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
from tests.runtime.standstill import LATE_S, stoppable

ENGINE, WORKER = EngineId("e1_0-r0-0"), WorkerId("e1_0-r0")
STALL_S, EVERY_S = 60, 5
LOOK = TimerFired(timer="balance 0")
AGAIN = SetTimer(timer="balance 0", at_s=5.0)
ARRIVAL = WorkerArrived(worker=WORKER, num_engines=1)


def awaiting(tmp_path):
    return Awaiting(Watchdog(tmp_path / "stall.txt", 60), STALL_S, lambda: "8 responses of engine-0")


async def wait_s(wait, lasts_s):
    """A wait for something that comes so much later."""
    has_come = asyncio.Event()
    asyncio.get_running_loop().call_later(lasts_s, lambda: (has_come.set(), wait.look()))
    await wait.until(has_come.is_set)


def lasts_s(tmp_path, event, commands, until_s=3 * STALL_S):
    """How long a wait lasts in which the same happens every few seconds, for a while."""

    async def main():
        loop = asyncio.get_running_loop()
        wait = awaiting(tmp_path)
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


def test_each_of_many_waits_has_the_whole_deadline_by_one_timer_at_a_time(tmp_path):
    async def main():
        loop, wait = asyncio.get_running_loop(), awaiting(tmp_path)
        call_at, timers = loop.call_at, []
        loop.call_at = lambda *args, **kwargs: timers.append(call_at(*args, **kwargs)) or timers[-1]
        for _ in range(1000):
            looks = iter((False, True, True))  # before the wait, in it, and when it ends
            loop.call_soon(wait.look)
            await wait.until(looks.__next__)
        num_timers = len(timers)
        for _ in range(5):
            await wait_s(wait, STALL_S * 0.4)
        with pytest.raises(DeadlineExceeded, match="8 responses of engine-0"):
            await wait.until(lambda: False)
        return num_timers, loop.time()

    assert run_in_virtual_time(main()) == (1, STALL_S * 3)
    assert "8 responses of engine-0" in (tmp_path / "stall.txt").read_text()


def test_a_pause_between_two_waits_is_no_wait(tmp_path):
    async def main():
        wait = awaiting(tmp_path)
        await wait_s(wait, 1)
        await asyncio.sleep(STALL_S / 2)
        wait.extend()
        await asyncio.sleep(STALL_S * 0.6)
        assert wait._timer is None
        await asyncio.sleep(10 * STALL_S)
        await wait_s(wait, STALL_S * 0.9)

    run_in_virtual_time(main())


def test_what_has_come_at_the_deadline_ends_the_wait_though_nobody_looked(tmp_path):
    async def main():
        await awaiting(tmp_path).until(lambda: asyncio.get_running_loop().time() >= STALL_S)

    run_in_virtual_time(main())


async def test_time_in_which_the_process_was_stopped_is_no_wait(tmp_path):
    watchdog, has_come = Watchdog(tmp_path / "stall.txt", 60), asyncio.Event()
    wait = Awaiting(watchdog, 3 * LATE_S, lambda: "8 responses of engine-0")
    async with stoppable(watchdog) as stop:
        waiting = asyncio.create_task(wait.until(has_come.is_set))
        for stopped_s in (0.0, LATE_S, 1000.0, LATE_S):
            await stop(stopped_s)
        has_come.set()
        wait.look()
        await waiting
        waiting = asyncio.create_task(wait.until(lambda: False))
        for stopped_s in (0.0, LATE_S, 1000.0, LATE_S, LATE_S):
            await stop(stopped_s)
        with pytest.raises(DeadlineExceeded, match="8 responses of engine-0"):
            await waiting
    wait.close()


async def test_a_cancelled_wait_is_cancelled(tmp_path):
    task = asyncio.create_task(awaiting(tmp_path).until(lambda: False))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


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
