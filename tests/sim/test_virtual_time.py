"""The virtual clock jumps; what runs on it is deterministic, and what would block is refused."""

import asyncio
import gc
import os
import signal
import time
import weakref

import pytest

from rollpacker.core.errors import InternalError
from rollpacker.sim.virtual_time import DeadlockError, run_in_virtual_time


def test_a_day_passes_at_once_and_timers_run_at_exactly_their_time():
    async def main():
        loop = asyncio.get_running_loop()
        seen = []
        for delay in (86400.1, 0.3, 7.0):
            loop.call_later(delay, lambda: seen.append(loop.time()))
        await asyncio.sleep(100_000)
        return seen, loop.time()

    began = time.monotonic()
    assert run_in_virtual_time(main()) == ([0.3, 7.0, 86400.1], 100_000)
    assert time.monotonic() - began < 60


def test_timers_of_one_time_run_in_the_order_in_which_they_were_set_whatever_else_is_set():
    async def main(num_others):
        loop, seen = asyncio.get_running_loop(), []
        for number in range(20):
            loop.call_at(5.0, seen.append, number)
            for other in range(num_others):
                loop.call_at(float(other), int).cancel()
        await asyncio.sleep(5)
        return seen

    assert [run_in_virtual_time(main(num_others)) for num_others in (0, 3)] == [list(range(20))] * 2


def test_cancelled_timers_are_forgotten_long_before_they_are_due():
    class Callback:
        def __call__(self): ...

    async def main():
        loop, kept = asyncio.get_running_loop(), []
        for number in range(1000):
            callback = Callback()
            kept.append(weakref.ref(callback))
            loop.call_later(1e9 + number, callback).cancel()
        del callback
        return sum(each() is not None for each in kept)

    assert run_in_virtual_time(main()) < 200


def test_a_modelled_run_leaves_the_garbage_collector_as_it_was():
    async def main():
        return gc.get_threshold(), gc.get_freeze_count() > 0

    before = gc.get_threshold()
    inside, is_frozen = run_in_virtual_time(main())
    assert inside > before
    assert is_frozen
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def test_time_stands_still_while_something_is_ready():
    async def main():
        for _ in range(1000):
            await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 0


def test_a_deadline_expires_in_virtual_time():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(3600):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_in_virtual_time(main()) == 3600


def test_a_timer_at_no_number_is_refused():
    async def set_timer() -> None:
        asyncio.get_running_loop().call_later(float("nan"), print)

    with pytest.raises(InternalError, match="set for nan s"):
        run_in_virtual_time(set_timer())


def test_a_deadlock_names_every_task_that_waits_and_where():
    async def wait_for_the_reward(event):
        await event.wait()

    async def main():
        task = asyncio.create_task(wait_for_the_reward(asyncio.Event()), name="pump: verdicts")
        await task

    with pytest.raises(DeadlockError) as caught:
        run_in_virtual_time(main())
    assert "pump: verdicts: " in str(caught.value)
    assert "test_virtual_time.py" in str(caught.value) or "locks.py" in str(caught.value)


async def in_a_thread():
    await asyncio.to_thread(time.sleep, 0)


async def over_a_socket():
    await asyncio.open_connection("127.0.0.1", 9)


async def in_a_process():
    await asyncio.create_subprocess_exec("true")


@pytest.mark.parametrize("leave", [in_a_thread, over_a_socket, in_a_process])
def test_whatever_leaves_virtual_time_is_refused(leave):
    with pytest.raises((InternalError, NotImplementedError)):
        run_in_virtual_time(leave())


def test_a_signal_is_handled_although_the_loop_never_sleeps():
    async def main():
        caught = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, caught.set)
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(5):
            await caught.wait()

    before = signal.getsignal(signal.SIGUSR1)
    try:
        run_in_virtual_time(main())
    finally:
        signal.signal(signal.SIGUSR1, before)
