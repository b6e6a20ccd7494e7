"""A wait has a deadline, and an expired one says what it waited for."""

import asyncio
import os
import subprocess
import sys
import textwrap
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from rollpacker.core.errors import DeadlineExceeded
from rollpacker.runtime.waiting import watchdog as watchdog_module
from rollpacker.runtime.waiting.watchdog import Watchdog
from tests.runtime.standstill import LATE_S, stoppable


async def never():
    await asyncio.Event().wait()


async def test_an_answer_in_time_is_passed_on(tmp_path):
    async def answer():
        return 42

    assert await Watchdog(tmp_path / "stall.txt", 60).within(1, "an answer", answer()) == 42
    assert not (tmp_path / "stall.txt").exists()


async def test_an_expired_wait_names_what_it_waited_for_and_leaves_a_report(tmp_path):
    watchdog = Watchdog(tmp_path / "logs" / "stall.txt", 60)

    async def stacks():
        return "engine stands in decode()"

    async def dead():
        raise ConnectionError("gone")

    watchdog.add_stack_source("engine-0", stacks)
    watchdog.add_stack_source("engine-1", dead)
    with pytest.raises(DeadlineExceeded, match="3 responses of engine-0") as caught:
        await watchdog.within(0.01, lambda: "3 responses of engine-0", never())
    report = (tmp_path / "logs" / "stall.txt").read_text()
    assert "3 responses of engine-0" in report
    assert "engine stands in decode()" in report
    assert "gone" in report
    assert "test_an_expired_wait" in report  # the driver's own stack
    assert str(tmp_path) in str(caught.value)


async def test_a_report_asks_all_actors_at_once_and_those_of_one_name_once(tmp_path, monkeypatch):
    watchdog, asked, are_all_asked = Watchdog(tmp_path / "stall.txt", 60), [], asyncio.Barrier(4)
    monkeypatch.setattr(watchdog_module, "_STACKS_DEADLINE_S", 60)

    def stacks_of(number):
        async def stacks():
            asked.append(number)
            await are_all_asked.wait()
            return f"stacks {number}\n"

        return stacks

    for name, number in (("engine-0", 7), ("engine-0", 0), *((f"engine-{each}", each) for each in range(1, 4))):
        watchdog.add_stack_source(name, stacks_of(number))
    with pytest.raises(DeadlineExceeded):
        async with asyncio.timeout(60):
            await watchdog.give_up(1, "an answer")
    assert asked == [0, 1, 2, 3]
    report = (tmp_path / "stall.txt").read_text()
    assert "== engine-0\nstacks 0\n\n== engine-1\nstacks 1\n" in report


async def test_a_report_waits_for_no_actor_that_is_itself_stuck(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog_module, "_STACKS_DEADLINE_S", 0.01)
    watchdog = Watchdog(tmp_path / "stall.txt", 60)
    watchdog.add_stack_source("engine-0", never)
    with pytest.raises(DeadlineExceeded):
        await watchdog.give_up(1, "an answer")
    assert "== engine-0\nno answer: TimeoutError()\n" in (tmp_path / "stall.txt").read_text()


async def test_an_expired_wait_whose_report_cannot_be_written_says_so_and_what_it_waited_for(tmp_path):
    (tmp_path / "logs").touch()
    with pytest.raises(DeadlineExceeded, match="an answer") as caught:
        await Watchdog(tmp_path / "logs" / "stall.txt", 60).within(0.01, "an answer", never())
    assert "could not be written" in str(caught.value)


async def test_a_timeout_inside_the_answer_is_not_mistaken_for_the_deadline(tmp_path):
    async def fails():
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own"):
        await Watchdog(tmp_path / "stall.txt", 60).within(5, "an answer", fails())


async def test_a_cancelled_wait_is_cancelled(tmp_path):
    task = asyncio.create_task(Watchdog(tmp_path / "stall.txt", 60).within(5, "an answer", never()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_time_in_which_the_process_was_stopped_counts_for_no_wait(tmp_path):
    watchdog, answer = Watchdog(tmp_path / "stall.txt", 60), asyncio.get_running_loop().create_future()
    async with stoppable(watchdog) as stop:
        wait = asyncio.create_task(watchdog.within(3 * LATE_S, "an answer", answer))
        for stopped_s in (0.0, LATE_S, 1000.0, LATE_S):
            await stop(stopped_s)
        answer.set_result(42)
        assert await wait == 42


async def test_a_wait_has_no_more_than_its_time_though_the_process_was_stopped(tmp_path):
    watchdog = Watchdog(tmp_path / "stall.txt", 60)
    async with stoppable(watchdog) as stop:
        wait = asyncio.create_task(watchdog.within(3 * LATE_S, "an answer", never()))
        for stopped_s in (0.0, LATE_S, 1000.0, LATE_S, LATE_S):
            await stop(stopped_s)
        assert wait.done()
        with pytest.raises(DeadlineExceeded, match="an answer"):
            await wait


async def test_time_in_which_the_event_loop_alone_was_blocked_counts_for_a_wait(tmp_path):
    watchdog = Watchdog(tmp_path / "stall.txt", 60)
    async with stoppable(watchdog) as stop:
        wait = asyncio.create_task(watchdog.within(3 * LATE_S, "an answer", never()))
        await asyncio.sleep(0)
        await stop(LATE_S, LATE_S, LATE_S)
        assert wait.done()
        with pytest.raises(DeadlineExceeded, match="an answer"):
            await wait


async def test_what_runs_before_the_late_heartbeat_reads_a_clock_that_stood_still(tmp_path):
    watchdog, read_at_s = Watchdog(tmp_path / "stall.txt", 60), []
    async with stoppable(watchdog) as stop:
        began_at_s = watchdog.time()
        asyncio.get_running_loop().call_soon(lambda: read_at_s.append(watchdog.time()))
        await stop(1000.0)
        assert read_at_s == [began_at_s]


async def test_no_time_of_a_clock_that_nobody_reads_any_more_is_taken_for_a_stop(tmp_path):
    watchdog = Watchdog(tmp_path / "stall.txt", 60)
    async with stoppable(watchdog) as stop:
        await watchdog.stop()
        began_at_s = watchdog.time()
        await stop(10.0)
        assert watchdog.time() == began_at_s + 10.0


@pytest.mark.parametrize("report", ["is written", "finds no room", "hangs"])
def test_a_blocked_event_loop_ends_the_process_with_stacks(tmp_path, report):
    logs = tmp_path / "logs"
    logs.mkdir()
    match report:
        case "finds no room":
            (logs / "stall.txt").symlink_to("/dev/full")
        case "hangs":
            os.mkfifo(logs / "stall.txt")  # nobody reads it
    program = textwrap.dedent(f"""
        import asyncio, pathlib, threading
        from rollpacker.runtime.waiting import watchdog as module
        {"module._LAST_WORDS_S = 1.0" if report == "hangs" else ""}
        async def main():
            watchdog = module.Watchdog(pathlib.Path({str(logs / "stall.txt")!r}), 0.5)
            watchdog.start()
            await asyncio.sleep(0)
            blocking_call()
        def blocking_call():
            threading.Event().wait(60)
        asyncio.run(main())
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == DeadlineExceeded.exit_code
    assert "stuck" in result.stderr
    written = (logs / "stall.txt").read_text() if report == "is written" else result.stderr
    assert "in blocking_call" in written


@pytest.mark.parametrize(("slept_s", "is_ended"), [([1.0] * 200, True), ([1.0, 1000.0, 1.0, 1.0], False)])
def test_a_process_that_was_stopped_and_goes_on_is_not_taken_for_one_that_is_stuck(
    tmp_path, monkeypatch, slept_s, is_ended
):
    now, sleeps = [100.0], iter(slept_s)

    def wait(_):
        slept = next(sleeps, None)
        now[0] += slept or 0.0
        return slept is None  # stopped

    class Ended(Exception):
        pass

    def end(_):
        raise Ended

    watchdog = Watchdog(tmp_path / "stall.txt", loop_stall_s=120)
    monkeypatch.setattr(watchdog_module.os, "_exit", end)
    watchdog._loop = SimpleNamespace(time=lambda: now[0])
    watchdog._read_at_s = watchdog._last_beat = now[0]
    watchdog._stopped = SimpleNamespace(wait=wait, is_set=lambda: False)
    with pytest.raises(Ended) if is_ended else nullcontext():
        watchdog._watch_loop()
