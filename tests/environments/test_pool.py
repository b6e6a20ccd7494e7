"""Real processes: they hang, crash and raise, and the pool goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.environment_events import EnvironmentBegan
from rollpacker.core.errors import EngineFailed
from rollpacker.core.ids import PromptId, RequestId
from rollpacker.environments.pool import EnvironmentPool
from rollpacker.environments.starting import PROCESS, EnvironmentStarter
from rollpacker.processes.package_modules import environment_of_children, words_that_run
from rollpacker.protocols.environment import EnvironmentAnswer, EnvironmentReset, EnvironmentTurn
from rollpacker.protocols.rollout import FinishReason
from tests.environments.answers import answers_of
from tests.environments.test_isolation import needs_bubblewrap

WALK = "rollpacker.environments.walk_turns:WalkTurns"
DELAYED = "rollpacker.environments.delayed:Delayed"
START = EnvironmentReset(seed=1, options={"ground_truth": "3 12"})

OWN = """
import subprocess
import time


class Env:
    def reset(self, seed):
        self.seed = seed
        return f"seed {seed}", {}

    def step(self, action):
        if action.endswith("wait"):
            time.sleep(1000 if action == "long wait" else 0.2)
        if action == "start":
            shell = subprocess.Popen(["setsid", "sh", "-c", "sleep 1000 & echo $!"], stdout=subprocess.PIPE, text=True)
            return shell.stdout.readline(), 0.0, False, False, {}
        if action == "raise":
            raise KeyError("no such door")
        if action == "exit":
            raise SystemExit("bye")
        if action == "nonsense":
            return "only a text"
        if action == "messages":
            return [{"role": "tool", "content": "7"}], 0.0, False, False, {}
        if action == "tokens":
            return [1, 2], 0.0, False, False, {}
        if action == "set":
            return [{"role": "user", "content": "", "doors": {1, 2}}], 0.0, False, False, {}
        if action == "nan":
            return "", float("nan"), False, False, {}
        return action.upper(), 0.5, False, action == "long", {}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """Where the class of `OWN` is."""
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py:Env"


def turn(text: str) -> EnvironmentTurn:
    return EnvironmentTurn(text=text, spelled=text, token_ids=(), logprobs=(), finish_reason=FinishReason.STOP)


def request(sample: int = 0) -> RequestId:
    return RequestId(0, PromptId(0, "p"), sample)


@asynccontextmanager
async def closing(pool: EnvironmentPool) -> AsyncIterator[EnvironmentPool]:
    try:
        yield pool
    finally:
        await pool.close()


def pool_of(
    source: str, *, is_isolated: bool = False, **arguments: Any
) -> AbstractAsyncContextManager[EnvironmentPool]:
    return closing(EnvironmentPool(EnvironmentStarter(source, arguments, is_isolated=is_isolated), limit_s=30.0))


async def answer(pool: EnvironmentPool) -> EnvironmentAnswer:
    (found,) = await answers_of(pool)
    return found


async def requests_of(pool: EnvironmentPool, number: int) -> set[RequestId]:
    """Whose answers come next, together or one after the other."""
    found: set[RequestId] = set()
    while len(found) < number:
        found |= {each.request for each in await answers_of(pool)}
    return found


def pids(pool: EnvironmentPool) -> list[int]:
    processes = [*pool._free, *pool._finishing.values(), *pool._open.values()]
    return [process.pid for process in processes if process is not None]


@pytest.mark.parametrize("is_isolated", [False, pytest.param(True, marks=needs_bubblewrap)])
async def test_a_walk_is_walked_step_by_step_and_rewarded_at_its_end(is_isolated: bool):
    async with pool_of(WALK, is_isolated=is_isolated) as pool:
        pool.reset(request(), 0, START)
        assert (await answer(pool)).observation == ""
        rewards = []
        for call, action, observation in ((1, "+4 7", "7 12 :"), (2, "+4 11", "11 12 :"), (3, "+1 12", "12 12 :")):
            pool.step(request(), call, turn(action))
            found = await answer(pool)
            assert (found.call, found.observation, found.failure) == (call, observation, None)
            rewards.append(found.reward)
        assert rewards == [0.0, 0.0, 1.0]
        assert found.is_terminated


@pytest.mark.parametrize("is_isolated", [False, pytest.param(True, marks=needs_bubblewrap)])
async def test_a_process_serves_one_trajectory_after_another(is_isolated: bool):
    async with pool_of(WALK, is_isolated=is_isolated) as pool:
        for sample in range(3):
            pool.reset(request(sample), 0, START)
            await answer(pool)
            pool.end(request(sample))
        assert len(pids(pool)) == 1
        pool.reset(request(3), 0, START)
        pool.reset(request(4), 0, START)
        assert await requests_of(pool, 2) == {request(3), request(4)}
        assert len(pids(pool)) == 2


async def test_no_more_processes_start_at_a_time_than_there_are_cores_and_one_that_comes_late_is_kept(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    async with pool_of(WALK) as pool:
        for sample in range(4):
            pool.reset(request(sample), 0, START)
        await asyncio.sleep(0)
        assert len(pool._starts) <= 1
        pool.end(request(0))
        pool.end(request(3))
        assert await requests_of(pool, 2) == {request(1), request(2)}
        assert len(pids(pool)) == 2, "the one that was started for the first is another's"


async def test_a_reset_that_waits_for_a_core_is_told_of_when_it_begins(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    async with pool_of(WALK) as pool:
        for sample in range(2):
            pool.reset(request(sample), 0, START)
        async with asyncio.timeout(30.0):
            [first, *_] = await pool.collect()
        assert first == EnvironmentBegan(request=request(0), call=0)
        assert pool._open[request(1)] is None, "it has no process yet, and none was told of"
        told = []
        async with asyncio.timeout(30.0):
            while len(told) < 2:
                told += [each for each in await pool.collect() if each.request == request(1)]
        assert [type(each) for each in told] == [EnvironmentBegan, EnvironmentAnswer]


async def test_an_environment_that_hangs_is_killed_when_it_is_ended_and_another_one_is_started():
    async with pool_of(DELAYED, env=WALK, p_hang=1.0) as pool:
        pool.reset(request(), 0, START)
        await answer(pool)
        (before,) = pids(pool)
        for call in range(1, 4):
            pool.step(request(), call, turn(f"+1 {3 + call}"))
            with suppress(TimeoutError):
                await asyncio.wait_for(pool.collect(), 1.0 if call < 3 else 0.1)
                continue
            break
        pool.end(request(), has_hung=True)
        assert pids(pool) == []
        await asyncio.gather(*pool._ends)
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        pool.reset(request(1), 0, START)
        assert (await answer(pool)).request == request(1)
        assert len(pids(pool)) == 1


async def test_it_is_said_once_which_limit_ended_an_environment_that_did_not_answer(own: str, caplog):
    starter = EnvironmentStarter(own, {})
    async with closing(EnvironmentPool(starter, limit_s=30.0, limits={"turn": "environment.turn_timeout_s=2"})) as pool:
        pool.reset(request(0), 0, START)
        pool.end(request(0), has_hung=True)
        for sample in (1, 2):
            pool.reset(request(sample), 0, START)
            await answer(pool)
            pool.step(request(sample), 1, turn("long wait"))
            await asyncio.sleep(0)
            pool.end(request(sample), has_hung=True)
    said = [record.getMessage().partition(" failed: ")[2] for record in caplog.records]
    assert said == ["it did not start in time", "its turn took longer than environment.turn_timeout_s=2"]


async def test_a_process_that_has_not_started_when_its_trajectorys_time_is_over_serves_the_next_one(own: str):
    async with pool_of(own) as pool:
        pool._free.append(await asyncio.to_thread(pool._starter.start))  # as one whose trajectory was stopped meanwhile
        (starting,) = pids(pool)
        pool.reset(request(), 0, START)
        await asyncio.sleep(0)
        pool.end(request(), has_hung=True)
        await next(iter(pool._finishing))
        pool.reset(request(1), 0, START)
        assert (await answer(pool)).observation == "seed 1"
        assert pids(pool) == [starting]


async def test_a_process_that_is_not_ready_in_time_is_a_time_out_of_its_trajectory_alone():
    starter = EnvironmentStarter(WALK, {}, start_limit_s=0.05)
    async with closing(EnvironmentPool(starter, limit_s=30.0)) as pool:
        for call in range(4):
            pool.reset(request(), call, START)
            found = await answer(pool)
            assert (found.failure, found.call) == ("environment_timeout", call)
            assert found.problem == "The environment process was not ready after 0.05 s."
            pool.end(request())
        await asyncio.gather(*pool._ends)
        assert pids(pool) == []


async def test_one_that_hangs_and_does_not_end_at_a_signal_does_not_hold_the_others(own: str):
    async with pool_of(own) as pool:
        for sample in range(2):
            pool.reset(request(sample), 0, START)
            await answer(pool)
        hanging = pool._open[request(0)]
        assert hanging is not None
        pool.step(request(0), 1, turn("long wait"))
        await asyncio.sleep(0)
        os.kill(hanging.pid, signal.SIGSTOP)  # it then takes no SIGTERM
        pool.end(request(0), has_hung=True)
        num_turns = 0
        while not hanging.has_died:
            num_turns += 1
            pool.step(request(1), num_turns, turn("go on"))
            assert (await answer(pool)).observation == "GO ON"
        assert num_turns > 1, "it had ended before the loop could go on"
        await asyncio.gather(*pool._ends)
        assert pids(pool) == [pool._open[request(1)].pid]


async def test_a_trajectory_that_is_stopped_leaves_its_environment_to_finish_for_the_next_one(own: str):
    async with pool_of(own) as pool:
        pool.reset(request(), 0, START)
        await answer(pool)
        before = pids(pool)
        pool.step(request(), 1, turn("short wait"))
        await asyncio.sleep(0)
        pool.end(request())
        (finishing,) = pool._finishing
        await finishing
        pool.reset(request(1), 0, START)
        assert (await answer(pool)).request == request(1), "the answer to the other one is nobody's"
        assert pids(pool) == before


async def test_one_that_is_stopped_in_the_moment_of_its_call_is_free_again_when_that_is_answered():
    async with pool_of(WALK) as pool:
        pool.reset(request(), 0, START)
        await answer(pool)
        for stopped in (1, 2):
            pool.end(request(stopped - 1))
            pool.reset(request(stopped), 0, START)
            pool.end(request(stopped))  # before the call has begun
            (finishing,) = pool._finishing
            await finishing
            assert not pool._finishing
            pool.reset(request(stopped), 1, START)
            await answer(pool)
        assert len(pids(pool)) == 1


async def test_environments_that_do_not_finish_are_not_more_than_were_open_at_once(own: str):
    async with pool_of(own) as pool:
        for sample in range(4):
            pool.reset(request(sample), 0, START)
            assert (await answer(pool)).request == request(sample)
            pool.step(request(sample), 1, turn("long wait"))
            await asyncio.sleep(0)
            pool.end(request(sample))
        assert len(pids(pool)) <= 3


async def test_what_an_environment_started_ends_with_it(own: str):
    started = []
    async with pool_of(own) as pool:
        for sample, has_hung in ((0, True), (1, False)):
            pool.reset(request(sample), 0, START)
            await answer(pool)
            pool.step(request(sample), 1, turn("start"))
            started.append(int((await answer(pool)).observation))
            os.kill(started[-1], 0)
            pool.step(request(sample), 2, turn("long wait"))
            await asyncio.sleep(0)
            pool.end(request(sample), has_hung=has_hung)
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_no_fresh_process_takes_the_next_turn_of_one_that_died_between_two(own: str):
    async with pool_of(own) as pool:
        pool.reset(request(), 0, START)
        await answer(pool)
        (pid,) = pids(pool)
        os.kill(pid, signal.SIGKILL)
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        pool.step(request(), 1, turn("short"))
        assert (await answer(pool)).failure == "environment_crashed"
        pool.end(request())
        pool.reset(request(1), 0, START)
        assert (await answer(pool)).observation == "seed 1"


DIES_AT_START = """
import os
from pathlib import Path

left = Path(__file__).with_name("left")
number = int(left.read_text())
left.write_text(str(number - 1))
if number > 0:
    os._exit(9)
"""


async def test_a_process_that_dies_as_it_starts_is_an_accident_until_three_in_a_row_do(tmp_path: Path):
    (tmp_path / "own.py").write_text(DIES_AT_START + OWN)
    (tmp_path / "left").write_text("2")
    async with pool_of(f"{tmp_path}/own.py:Env") as pool:
        for _ in range(2):
            pool.reset(request(), 0, START)
            assert (await answer(pool)).failure == "environment_crashed"
            pool.end(request())
        pool.reset(request(), 0, START)
        assert (await answer(pool)).observation == "seed 1"
    (tmp_path / "left").write_text("9")
    async with pool_of(f"{tmp_path}/own.py:Env") as pool:
        for call in range(2):
            pool.reset(request(), call, START)
            assert (await answer(pool)).failure == "environment_crashed"
        pool.reset(request(), 2, START)
        with pytest.raises(EngineFailed, match="ended with code 9"):
            await answer(pool)


@pytest.mark.parametrize("fate", ["p_crash", "p_crash_at_reset"])
async def test_an_environment_that_crashes_is_a_failure_of_its_trajectory_alone(fate: str):
    async with pool_of(DELAYED, env=WALK, **{fate: 1.0}) as pool:
        pool.reset(request(), 0, START)
        found = await answer(pool)
        place = 3
        while found.failure is None:
            place += 1
            pool.step(request(), found.call + 1, turn(f"+1 {place}"))
            found = await answer(pool)
        assert found.failure == "environment_crashed"
        pool.end(request())
        pool.reset(request(1), 0, START)
        assert (await answer(pool)).request == request(1)


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("raise", "no such door"),
        ("exit", "SystemExit: bye"),
        ("nonsense", "an observation, a text"),
        ("nan", "no training bears"),
        ("tokens", "an observation, a text"),
        ("set", "no JSON: Object of type set"),
    ],
)
async def test_what_an_environment_raises_or_answers_otherwise_is_a_failure_in_words(own: str, action: str, says: str):
    async with pool_of(own) as pool:
        pool.reset(request(), 0, START)
        assert (await answer(pool)).observation == "seed 1"
        pool.step(request(), 1, turn(action))
        found = await answer(pool)
        assert found.failure == "environment_error"
        assert says in found.problem
        pool.step(request(), 2, turn("long"))
        found = await answer(pool)
        assert (found.observation, found.reward, found.is_truncated) == ("LONG", 0.5, True)
        pool.step(request(), 3, turn("messages"))
        assert (await answer(pool)).observation == [{"role": "tool", "content": "7"}]


async def test_a_step_of_an_environment_that_is_not_open_fails():
    async with pool_of(WALK) as pool:
        pool.step(request(), 4, turn("+1 4"))
        assert await answer(pool) == EnvironmentAnswer(request=request(), call=4, failure="environment_lost")


async def test_a_class_that_cannot_be_made_ends_the_run_with_the_reason():
    async with pool_of("rollpacker.environments.walk_turns:WalkTurn") as pool:
        pool.reset(request(), 0, START)
        with pytest.raises(EngineFailed, match="it has `WalkTurns`"):
            await answer(pool)


async def test_a_start_without_a_descriptor_left_ends_the_run_with_the_reason(monkeypatch):
    def fail():
        raise OSError(errno.EMFILE, "Too many open files")

    async with pool_of(WALK) as pool:
        monkeypatch.setattr(socket, "socketpair", fail)
        pool.reset(request(), 0, START)
        with pytest.raises(EngineFailed, match=r"cannot start: .* Too many open files"):
            await asyncio.wait_for(answer(pool), 30.0)


async def test_no_process_is_left_when_the_pool_is_closed_in_the_middle_of_a_call():
    async with pool_of(DELAYED, env=WALK, median_s=50.0) as pool:
        pool.reset(request(), 0, START)
        pool.reset(request(1), 0, START)
        num_begun = 0
        while num_begun < 2:
            num_begun += sum(isinstance(each, EnvironmentBegan) for each in await pool.collect())
        left = pids(pool)
    assert len(left) == 2
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(("source", "code"), [(WALK, 0), (f"{WALK}s", 1)])
def test_a_process_whose_run_ends_as_it_starts_says_nothing_on_the_terminal(source: str, code: int):
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [*words_that_run(PROCESS, None), source, "{}", str(os.getpid())],
            stdin=theirs.fileno(),
            stderr=subprocess.PIPE,
            env=environment_of_children(),
        )
    ours.close()
    _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (code, b"")
