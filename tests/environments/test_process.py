"""The process of one environment, without a pool: what user code does to it as it is made, forks or is closed."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from rollpacker.config.python_names import UnusableFunction
from rollpacker.environments.pool import EnvironmentPool
from rollpacker.environments.process import make
from rollpacker.environments.starting import EnvironmentStarter
from rollpacker.processes.server_process import STOP_LIMIT_S, ServerProcess
from tests.environments.answers import answers_of
from tests.environments.test_pool import START, closing, pids, request, turn

OWN = """
import functools
import mmap
import os
import time
from pathlib import Path


class Env:
    def __init__(self, forks, ends, fifo):
        self.forks, self.ends, self.fifo = forks, ends, Path(fifo)
        self.fork("make")

    def reset(self, seed):
        return f"seed {seed}", {}

    def step(self, action):
        self.fork("step")
        return action.upper(), 0.5, False, False, {}

    def fork(self, where):
        if where == self.forks and os.fork() == 0:
            self.fifo.write_text(str(os.getpid()))
            self.fifo.read_text()
            if self.ends == "raise":
                raise OSError("no port")
            if self.ends == "exit":
                raise SystemExit(0)
        self.forks = None if where == self.forks else self.forks


class Busy:
    def reset(self):
        return "", {}

    def step(self, action):
        time.sleep(1000)


class HangsAtItsEnd(Busy):
    def close(self):
        time.sleep(1000)


class Closed(Busy):
    def __init__(self, file):
        self.file = Path(file)

    def close(self):
        self.file.write_text("closed")


class NoSpaceYet(Busy):
    @property
    def action_space(self):
        raise RuntimeError("call reset first")


class BuiltInReset(Busy):
    reset = max


class NoStep:
    def reset(self):
        return "", {}


class TakesATask(Busy):
    def reset(self, task):
        return "", {}


class ShownByRender(TakesATask):
    render_mode = "ansi"


class AsyncStep(Busy):
    async def step(self, action):
        return action, 0.0, False, False, {}


class AsyncReset(Busy):
    async def reset(self):
        return "", {}


class Hungry:
    def __init__(self, file):
        self.file = file

    def reset(self):
        with open(self.file, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        reserved = mmap.mmap(-1, 20 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=0)
        return f"{len(mapped) >> 30} {len(reserved) >> 30}", {}

    def step(self, action):
        taken = bytes(17 << 30) if action == "bytes" else mmap.mmap(-1, 17 << 30, mmap.MAP_PRIVATE)
        return str(len(taken)), 0.0, False, False, {}


class StepOfTwo(Busy):
    def step(self, action, index):
        return action, 0.0, False, False, {}


class StepOfNone(Busy):
    def step(self):
        return "", 0.0, False, False, {}


class BuiltInStep(Busy):
    step = max


def counted(step):
    @functools.wraps(step)
    def with_index(self, action):
        return step(self, action, 0)

    return with_index


class DecoratedStep(Busy):
    @counted
    def step(self, action, index):
        return action, 0.0, False, False, {}


class FailsToClose(Busy):
    def close(self):
        raise OSError("no port")
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


@contextmanager
def started(source: str, arguments: dict[str, Any]) -> Iterator[ServerProcess]:
    process = EnvironmentStarter(source, arguments).start()
    try:
        assert process.start_failure() is None
        yield process
    finally:
        process.close()


def ask(process: ServerProcess, **message: Any) -> dict[str, Any]:
    return process.ask(json.dumps(message), 30.0)


@pytest.mark.parametrize("ends", ["raise", "exit", "return"])
@pytest.mark.parametrize("forks", ["make", "step"])
def test_a_process_that_an_environment_forks_answers_nothing(own: str, tmp_path: Path, forks: str, ends: str):
    os.mkfifo(fifo := tmp_path / "fifo")
    with started(f"{own}:Env", {"forks": forks, "ends": ends, "fifo": str(fifo)}) as process:
        assert ask(process, reset={"seed": 1})["observation"] == "seed 1"
        if forks == "step":
            assert ask(process, step={"text": "one"})["observation"] == "ONE"
        child = os.pidfd_open(int(fifo.read_text()))
        fifo.write_text("come back")
        assert select.select([child], [], [], 30.0)[0], "it goes on in the process of its parent"
        os.close(child)
        for text in ("two", "three"):
            assert ask(process, step={"text": text})["observation"] == text.upper()


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("NoSpaceYet", r"making .*:NoSpaceYet raised RuntimeError: call reset first \(own.py, line \d+\)"),
        ("BuiltInReset", "its reset cannot be called: its parameters cannot be read: no signature"),
        ("NoStep", "own.py:NoStep has no method `step`"),
        ("TakesATask", "its reset cannot be called: its parameter `task` is none of seed, options, .* no default"),
        ("ShownByRender", "its reset cannot be called: its parameter `task` is none of"),
        ("AsyncStep", "the method `step` of .*own.py:AsyncStep is async"),
        ("AsyncReset", "the method `reset` of .*own.py:AsyncReset is async"),
        ("StepOfTwo", "`step` of .*own.py:StepOfTwo is called with a turn alone: missing a required argument: 'index'"),
        ("StepOfNone", "`step` of .*own.py:StepOfNone is called with a turn alone: too many positional arguments"),
    ],
)
def test_a_class_whose_parts_cannot_be_looked_at_is_the_users_mistake(own: str, name: str, says: str):
    with pytest.raises(UnusableFunction, match=says):
        make(f"{own}:{name}", {})


@pytest.mark.parametrize("name", ["BuiltInStep", "DecoratedStep"])
def test_a_step_is_not_refused_where_its_parameters_cannot_be_read_or_a_decorator_gives_them(own: str, name: str):
    assert make(f"{own}:{name}", {})


def test_an_environment_may_map_and_reserve_more_than_the_memory_that_it_may_have_and_the_limit_is_told(
    own: str, tmp_path: Path
):
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(20 << 30)
    with started(f"{own}:Hungry", {"file": file.name}) as process:
        assert ask(process, reset={})["observation"] == "20 20"
        for action, error in (("bytes", "MemoryError"), ("mapping", "OSError")):
            failure = ask(process, step={"text": action})["failure"]
            limit = "each process of an environment may have 16 GiB of memory"
            assert re.fullmatch(rf"it raised {error}: .*\(own\.py, line \d+\); {limit}", failure)


@pytest.mark.parametrize("name", ["Busy", "HangsAtItsEnd"])
async def test_the_end_of_many_environments_takes_no_longer_than_that_of_one(own: str, name: str):
    number = 4
    pool = EnvironmentPool(EnvironmentStarter(f"{own}:{name}", {}), limit_s=1000.0)
    async with closing(pool):
        for sample in range(number):
            pool.reset(request(sample), 0, START)
        num_answers = 0
        while num_answers < number:
            num_answers += len(await answers_of(pool))
        for sample in range(number if name == "Busy" else 0):
            pool.step(request(sample), 1, turn("go"))
        await asyncio.sleep(0)
        left, began_s = pids(pool), time.monotonic()
    assert time.monotonic() - began_s < 3.5 * STOP_LIMIT_S  # one after the other they take 4 times as long
    for pid in left:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_an_environment_without_a_call_closes_what_it_holds_while_another_one_is_busy(own: str, tmp_path: Path):
    pool = EnvironmentPool(EnvironmentStarter(f"{own}:Closed", {"file": f"{tmp_path}/closed"}), limit_s=1000.0)
    async with closing(pool):
        for sample in range(2):
            pool.reset(request(sample), 0, START)
            await answers_of(pool)
        pool.step(request(0), 1, turn("go"))
        await asyncio.sleep(0)
    assert (tmp_path / "closed").read_text() == "closed"


def test_an_environment_that_is_delayed_closes_what_it_holds(own: str, tmp_path: Path):
    delayed = {"env": f"{own}:Closed", "arguments": {"file": f"{tmp_path}/closed"}}
    make("rollpacker.environments.delayed:Delayed", delayed).close()
    assert (tmp_path / "closed").read_text() == "closed"
    make("rollpacker.environments.delayed:Delayed", {"env": f"{own}:Busy"}).close()


def test_a_close_that_raises_is_logged(own: str, caplog: pytest.LogCaptureFixture):
    make(f"{own}:FailsToClose", {}).close()
    assert "Closing an environment raised OSError: no port (own.py, line " in caplog.text
