import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rollpacker.config.sections.reward import RewardSection
from rollpacker.core.errors import EngineFailed
from rollpacker.processes.server_process import ServerProcess
from rollpacker.rewards.factory import make_reward_worker
from rollpacker.rewards.worker import SCORING_PROCESS, InPlaceRewardWorker, KillableRewardWorker
from tests.e2e.processes import watched
from tests.rewards.asking import request_of, verdicts_of

HERE = Path(__file__).parent
LONG_S = 60.0
"""A time limit that is never reached; what waits for it fails the test by pytest's own limit."""


@pytest.fixture(autouse=True)
def _hostile_module_can_be_imported(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


@asynccontextmanager
async def hostile_worker(timeout_s=LONG_S, num_workers=1):
    worker = KillableRewardWorker("hostile_module:score", num_workers, timeout_s)
    try:
        yield worker
    finally:
        await worker.close()


async def score(worker, *ground_truths):
    """Give the reasons in the order of the orders."""
    await worker.score([request_of(sample, order) for sample, order in enumerate(ground_truths)])
    return [verdict.reason for verdict in await verdicts_of(worker, len(ground_truths))]


async def read_fifo(path):
    return int(await asyncio.to_thread(path.read_text))


@pytest.fixture
def fifo(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    return tmp_path / "fifo"


async def test_a_score_depends_on_the_four_arguments_and_takes_its_time():
    async with hostile_worker() as worker:
        texts = {"prompt_text": "<user>prompt</user>", "prompt": "prompt"}
        await worker.score([request_of(3, "echo", 'line\n"two" é\ud800', **texts, is_truncated=True)])
        [verdict] = await worker.collect()
        assert verdict.request.sample == 3
        assert (verdict.reward, verdict.reason) == (1.0, 'prompt|line\n"two" é?')
        assert verdict.time_s > 0


async def test_a_check_that_hangs_in_c_is_killed_and_the_next_is_scored():
    async with hostile_worker(timeout_s=2.0) as worker:
        assert await score(worker, "hang_in_c", "ok", "hang_in_c", "ok") == ["timeout", "scored", "timeout", "scored"]


def is_there(pid):
    return Path(f"/proc/{pid}").exists()


async def test_what_a_check_started_is_killed_with_it_in_whatever_session_and_whoever_its_parent_was(tmp_path):
    async with hostile_worker(timeout_s=2.0) as worker:
        assert await score(worker, f"start {tmp_path / 'pid'}", "ok") == ["timeout", "scored"]
        assert not is_there(int((tmp_path / "pid").read_text()))


async def test_what_the_import_of_a_reward_started_serves_all_checks_and_ends_with_the_worker(monkeypatch):
    monkeypatch.setenv("HOSTILE_PREPARE", "serve")
    async with hostile_worker(timeout_s=2.0) as worker:
        assert await score(worker, "hang_in_c") == ["timeout"]
        await worker.score([request_of(0, "server")])
        [verdict] = await worker.collect()
        assert is_there(int(verdict.reward))
    assert not is_there(int(verdict.reward))


def test_what_the_import_of_a_reward_started_ends_with_a_process_that_was_never_asked(monkeypatch, tmp_path):
    monkeypatch.setenv("HOSTILE_PREPARE", "serve")
    monkeypatch.setenv("HOSTILE_SERVER_FILE", str(tmp_path / "pid"))
    process = ServerProcess(SCORING_PROCESS, ["hostile_module:score", "2.0"], "reward process")
    while not (tmp_path / "pid").exists():
        time.sleep(0.05)
    process.close()
    assert not is_there(int((tmp_path / "pid").read_text()))


@pytest.mark.parametrize("order", ["fork_and_raise", "fork_and_return"])
async def test_a_process_that_a_check_forks_gives_no_score(fifo, order):
    async with hostile_worker() as worker:
        assert await score(worker, f"{order} {fifo}") == ["scored"]
        with watched(await read_fifo(fifo)) as wait_for_the_end:
            fifo.write_text("come back")
            wait_for_the_end()
        scorers = [(await _pid_verdict(worker)).reason, *await score(worker, "ok", "pid")]
        assert scorers == ["pid", "scored", "pid"]


async def test_a_process_that_the_import_of_a_reward_forks_is_no_second_supervisor(monkeypatch, fifo):
    monkeypatch.setenv("HOSTILE_PREPARE", f"fork {fifo}")
    async with hostile_worker() as worker:
        assert await score(worker, "ok") == ["scored"]
        with watched(await read_fifo(fifo)) as wait_for_the_end:
            fifo.write_text("come back")
            wait_for_the_end()
        assert await score(worker, "pid", "ok") == ["pid", "scored"]
        assert fifo.exists(), "it ran the finalizers of the module"


@pytest.mark.parametrize("order", ["segfault", "exit", "raise boom", "eat_memory", "long"])
async def test_a_check_that_crashes_says_so_and_the_next_is_scored(order):
    async with hostile_worker() as worker:
        assert await score(worker, order, "ok", order, "ok") == ["checker_crashed", "scored"] * 2


async def test_a_check_that_raises_in_place_is_a_verdict_and_the_next_is_scored(caplog):
    from tests.rewards import hostile_module

    worker = InPlaceRewardWorker(hostile_module.score)
    assert await score(worker, "raise boom", "ok") == ["checker_crashed", "scored"]
    assert "r0:a@0#0 is checker_crashed: it raised ValueError: boom" in caplog.text


async def test_a_reward_process_that_cannot_be_started_again_ends_the_run(monkeypatch):
    """Or every further response would silently be worth nothing."""
    async with hostile_worker() as worker:
        assert await score(worker, "ok") == ["scored"]
        monkeypatch.setattr(sys, "executable", "/no/such/python")
        os.kill(worker.pids[0], signal.SIGKILL)
        with pytest.raises(EngineFailed, match="cannot start"):
            await score(worker, "ok")


async def test_what_a_check_prints_is_not_taken_for_its_verdict():
    async with hostile_worker() as worker:
        assert await score(worker, "print", "ok") == ["scored", "scored"]


async def test_what_a_check_prints_is_logged_that_of_one_that_crashes_too(capfd, monkeypatch):
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    async with hostile_worker() as worker:
        assert await score(worker, "print", "say_and_exit last", "ok") == ["scored", "checker_crashed", "scored"]
    logged = capfd.readouterr().err
    assert logged.count("hacked") == 2
    assert logged.endswith("last\n")


async def test_of_what_checks_print_the_log_has_the_beginning(capfd):
    async with hostile_worker() as worker:
        assert await score(worker, "flood 100000", "print", "flood 1000000") == ["scored"] * 3
    logged = capfd.readouterr().err
    assert logged.count("x") == 1 << 16
    assert logged.endswith("\nWhat the reward function prints from here on is dropped.\n")


async def test_the_time_limit_counts_from_the_start_of_the_check_not_of_the_queueing():
    async with hostile_worker(timeout_s=4.0) as worker:
        assert await score(worker, *["sleep 1.1"] * 4) == ["scored"] * 4


async def test_a_waiting_check_does_not_hold_up_the_other_workers(fifo):
    async with hostile_worker(num_workers=2) as worker:
        await worker.score([request_of(0, f"wait {fifo}")])
        await read_fifo(fifo)
        await worker.score([request_of(sample, "ok") for sample in range(1, 20)])
        assert {verdict.request.sample for verdict in await verdicts_of(worker, 19)} == set(range(1, 20))
        await asyncio.to_thread(fifo.write_text, "go on")
        [last] = await worker.collect()
        assert last.request.sample == 0


async def test_a_killed_scorer_is_a_crash_and_the_next_is_scored(fifo):
    async with hostile_worker() as worker:
        await worker.score([request_of(0, f"hang_in_c {fifo}"), request_of(1, "ok")])
        os.kill(await read_fifo(fifo), signal.SIGKILL)
        verdicts = await verdicts_of(worker, 2)
        assert [verdict.reason for verdict in verdicts] == ["checker_crashed", "scored"]


async def test_a_killed_supervisor_is_a_crash_its_scorer_dies_and_the_next_is_scored(fifo):
    async with hostile_worker() as worker:
        await worker.score([request_of(0, f"hang_in_c {fifo}"), request_of(1, "ok")])
        with watched(await read_fifo(fifo)) as wait_for_the_end:
            os.kill(worker.pids[0], signal.SIGKILL)
            verdicts = await verdicts_of(worker, 2)
            assert [verdict.reason for verdict in verdicts] == ["checker_crashed", "scored"]
            wait_for_the_end()


async def test_a_supervisor_killed_between_checks_costs_none():
    async with hostile_worker() as worker:
        assert await score(worker, "ok") == ["scored"]
        with watched(worker.pids[0]) as wait_for_the_end:
            os.kill(worker.pids[0], signal.SIGKILL)
            wait_for_the_end()
        assert await score(worker, "ok") == ["scored"]


async def test_a_scorer_killed_between_checks_costs_none():
    async with hostile_worker() as worker:
        scorer = int((await _pid_verdict(worker)).reward)
        with watched(scorer) as wait_for_the_end:
            os.kill(scorer, signal.SIGKILL)
            wait_for_the_end()
        assert await score(worker, "ok") == ["scored"]
        assert (await _pid_verdict(worker)).reward != scorer


async def test_ctrl_c_does_not_end_the_processes():
    async with hostile_worker() as worker:
        [verdict] = [await _pid_verdict(worker)]
        os.kill(worker.pids[0], signal.SIGINT)
        os.kill(int(verdict.reward), signal.SIGINT)
        assert (await _pid_verdict(worker)).reward == verdict.reward


async def test_a_scorer_serves_many_checks_and_is_renewed_now_and_then():
    async with hostile_worker() as worker:
        await worker.score([request_of(sample, "pid") for sample in range(1500)])
        scorers = Counter(verdict.reward for verdict in await verdicts_of(worker, 1500))
        assert sorted(scorers.values()) == [500, 1000]


async def _pid_verdict(worker):
    await worker.score([request_of(0, "pid")])
    [verdict] = await worker.collect()
    return verdict


async def test_closing_ends_every_process_even_in_the_middle_of_a_check(fifo):
    async with hostile_worker(num_workers=2) as worker:
        await worker.score([request_of(0, f"hang_in_c {fifo}")])
        with watched(await read_fifo(fifo), *worker.pids) as wait_for_the_end:
            pending = asyncio.create_task(worker.collect())
            await worker.close()
            wait_for_the_end()
            assert await pending == []


async def test_closing_before_the_first_request_ends_every_process():
    worker = KillableRewardWorker("hostile_module:score", 2, LONG_S)
    with watched(*worker.pids) as wait_for_the_end:
        await worker.close()
        wait_for_the_end()


def wait_until_the_kernel_ended(thread):
    """`join` returns a moment earlier."""
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        os.sched_yield()


async def test_the_end_of_the_thread_that_started_a_worker_is_not_its_end():
    """The kernel reports the death of the starting thread as that of the parent."""
    made, may_end = asyncio.Future(), threading.Event()
    loop = asyncio.get_running_loop()

    def start():
        worker = KillableRewardWorker("hostile_module:score", 1, LONG_S)
        loop.call_soon_threadsafe(made.set_result, worker)
        may_end.wait()

    thread = threading.Thread(target=start)
    thread.start()
    worker = await made
    try:
        pid = worker.pids[0]
        assert await score(worker, "ok") == ["scored"]
        may_end.set()
        wait_until_the_kernel_ended(thread)
        assert await score(worker, "ok", "ok") == ["scored", "scored"]
        assert worker.pids == [pid]
    finally:
        may_end.set()
        await worker.close()


@pytest.mark.parametrize(("how", "words"), [("raise", "no module named sympathy"), ("die", "ended with code 9")])
async def test_a_reward_that_cannot_be_loaded_is_an_error_not_a_verdict(monkeypatch, how, words):
    monkeypatch.setenv("HOSTILE_PREPARE", how)
    async with hostile_worker() as worker:
        await worker.score([request_of(0, "ok")])
        with pytest.raises(EngineFailed, match=words):
            await worker.collect()


PARENT = """
import asyncio, os, sys, time
from rollpacker.rewards.worker import KillableRewardWorker
from tests.rewards.asking import request_of

async def main(situation, fifo):
    worker = KillableRewardWorker("hostile_module:score", 2, 600.0)
    print(*worker.pids, flush=True)
    if situation != "starting":
        await worker.score([request_of(0, f"hang_in_c {fifo}"), request_of(1, "ok")])
        await worker.collect()
    if situation == "forked" and os.fork() == 0:
        time.sleep(600)
    await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("situation", ["starting", "scoring", "forked"])
def test_no_process_outlives_a_parent_that_is_killed(fifo, situation):
    """Not even while another child of the parent holds copies of its sockets (`forked`)."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, sys.path)])}
    program = [sys.executable, "-c", PARENT, situation, str(fifo)]
    with subprocess.Popen(
        program, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        supervisors = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(supervisors) == 2
        scorers = [int(fifo.read_text())] if situation != "starting" else []
        with watched(*supervisors, *scorers) as wait_for_the_end:
            parent.kill()
            wait_for_the_end()
        if situation == "forked":
            os.killpg(parent.pid, signal.SIGKILL)


async def test_math_answers_that_sympy_never_finishes_are_killed_and_the_next_is_scored():
    worker = make_reward_worker(RewardSection(name="math", timeout_s=2.0))
    try:
        responses = [r"\boxed{9^{9^{9^{9}}}}", r"\boxed{7}", r"\boxed{(10^8)!}", r"\boxed{8}", "no idea"]
        await worker.score([request_of(sample, "7", response) for sample, response in enumerate(responses)])
        verdicts = await verdicts_of(worker, len(responses))
        assert [verdict.reason for verdict in verdicts] == [
            "timeout",
            "correct",
            "timeout",
            "wrong_answer",
            "no_answer",
        ]
        assert [verdict.reward for verdict in verdicts] == [0.0, 1.0, 0.0, 0.0, 0.0]
    finally:
        await worker.close()


async def test_walks_are_scored_in_place():
    worker = make_reward_worker(RewardSection(name="walk"))
    await worker.score([request_of(0, "3 5", "+2 5"), request_of(1, "3 5", "+1 4", is_truncated=True)])
    verdicts = await worker.collect()
    assert [(verdict.request.sample, verdict.reward, verdict.reason) for verdict in verdicts] == [
        (0, 1.0, "correct"),
        (1, 0.0, "truncated"),
    ]
    pending = asyncio.create_task(worker.collect())
    await asyncio.sleep(0)
    assert not pending.done()
    await worker.close()
    assert await pending == []
