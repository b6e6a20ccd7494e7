"""Waits that follow one another share a timer, and each has the whole deadline."""

import asyncio

import pytest

from rollpacker.core.errors import DeadlineExceeded
from rollpacker.runtime.waiting.shared_timeout import SharedTimeout
from rollpacker.runtime.waiting.watchdog import Watchdog
from rollpacker.sim.virtual_time import run_in_virtual_time


def patience_of(tmp_path, deadline_s):
    return SharedTimeout(Watchdog(tmp_path / "stall.txt", 60), deadline_s)


async def never():
    await asyncio.Event().wait()


def test_a_wait_is_given_up_when_it_has_lasted_the_deadline_however_many_came_before_it(tmp_path):
    async def main():
        patience = patience_of(tmp_path, 10)
        for _ in range(5):
            await patience.within(lambda: "a short wait", asyncio.sleep(4))
        with pytest.raises(DeadlineExceeded, match="3 responses of engine-0"):
            await patience.within(lambda: "3 responses of engine-0", never())
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 30
    assert "3 responses of engine-0" in (tmp_path / "stall.txt").read_text()


def test_progress_gives_a_wait_its_whole_time_again(tmp_path):
    async def main():
        loop, patience = asyncio.get_running_loop(), patience_of(tmp_path, 10)
        loop.call_later(6, patience.extend)
        loop.call_later(13, patience.extend)
        with pytest.raises(DeadlineExceeded):
            await patience.within(lambda: "a batch", never())
        return loop.time()

    assert run_in_virtual_time(main()) == 23


def test_a_pause_between_two_waits_is_no_wait(tmp_path):
    async def main():
        patience = patience_of(tmp_path, 10)
        await patience.within(lambda: "a short wait", asyncio.sleep(1))
        await asyncio.sleep(100)
        return await patience.within(lambda: "an answer", asyncio.sleep(9, "answer"))

    assert run_in_virtual_time(main()) == "answer"


def test_a_thousand_waits_set_one_timer(tmp_path):
    async def main():
        loop, num_set = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(*args, **kwargs):
            nonlocal num_set
            num_set += 1
            return call_at(*args, **kwargs)

        loop.call_at = counted
        patience = patience_of(tmp_path, 10)
        for _ in range(1000):
            await patience.within(lambda: "an answer", asyncio.sleep(0))
        return num_set

    assert run_in_virtual_time(main()) == 1


async def test_a_cancelled_wait_is_cancelled(tmp_path):
    task = asyncio.create_task(patience_of(tmp_path, 5).within(lambda: "an answer", never()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
