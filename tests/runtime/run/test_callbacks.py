"""Classes of a user's that are told what happened, however they behave."""

from __future__ import annotations

import asyncio
import json
import math
import os
import select
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.errors import ConfigError, StorageFailed
from rollpacker.processes.lifetimes import children_of
from rollpacker.processes.server_process import STOP_LIMIT_S
from rollpacker.runtime.run import callbacks
from rollpacker.runtime.run.callbacks import Callbacks, check_callbacks, open_callbacks
from rollpacker.sim.virtual_time import run_in_virtual_time
from tests.runtime.driving import until

MINE = """
import functools
import json
import multiprocessing
import os
import subprocess
import time
from pathlib import Path

class Everything:
    def __init__(self, run_dir):
        self.out = run_dir / "told.jsonl"
        print("made")

    def tell(self, *what):
        with self.out.open("a") as file:
            file.write(json.dumps(what, default=str) + "\\n")

    def on_step(self, row):
        self.tell("step", row)
        row.clear()

    def on_evaluation(self, rows):
        self.tell("evaluation", rows)

    def on_checkpoint(self, path):
        self.tell("checkpoint", path.name)

    def on_end(self, error):
        self.tell("end", error)

class OnlySteps:
    def on_step(self, row):
        pass

class Raises(Everything):
    def on_step(self, row):
        raise ValueError(f"step {row['step']}")

class Hangs(Everything):
    def on_step(self, row):
        self.tell("step", row)
        time.sleep(1000)

class Dies(Everything):
    def on_step(self, row):
        os._exit(3)

class RaisesWhenMade:
    def __init__(self):
        raise OSError("no network")
    on_end = OnlySteps.on_step

def timed(method):
    @functools.wraps(method)
    def call(self, row):
        return method(self, row, time.time())
    return call

class Decorated:
    @timed
    def on_step(self, row, now):
        pass

class OfADict(dict):
    @staticmethod
    def on_step(row):
        pass

def with_anything(init):
    @functools.wraps(init)
    def call(self, *arguments, **named):
        init(self, *arguments, **named)
    return call

class OfAClass:
    @with_anything
    def __init__(self):
        pass
    @classmethod
    def on_step(cls, row):
        pass

class ToldItsFolder:
    @with_anything
    def __init__(self, run_dir):
        self.run_dir = run_dir
    def on_step(self, row):
        assert self.run_dir.is_dir()

class Misspelt:
    def on_steps(self, row):
        pass

class StartsOthers(Everything):
    def on_end(self, error):
        command = subprocess.Popen(["sleep", "1000"])
        forks = multiprocessing.get_context("fork")
        has_begun = forks.Event()
        forked = forks.Process(target=lambda: (has_begun.set(), time.sleep(1000)))
        forked.start()
        has_begun.wait(10)
        for each in (command, forked):
            each.terminate()
        forked.join(10)
        self.tell("ended", [command.wait(10), forked.exitcode])

class Forks(Everything):
    def on_step(self, row):
        self.tell("step", os.getpid())
        if row["step"] == 0 and os.fork() == 0:
            fifo = self.out.with_name("fifo")
            fifo.write_text(str(os.getpid()))
            fifo.read_text()

class Nothing:
    def step(self, row):
        pass

class TakesTwo:
    def on_step(self, row, domains):
        pass

class Waits:
    async def on_step(self, row):
        pass

class NeedsMore:
    def __init__(self, server):
        pass
    def on_step(self, row):
        pass

function = print
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path / "mine.py"


def told(run_dir: Path) -> list[list[Any]]:
    return [json.loads(line) for line in (run_dir / "told.jsonl").read_text().splitlines()]


def use(opened: Callbacks) -> None:
    for step in range(2):
        opened.on_step({"step": step, "loss": None, "reward_mean": math.inf})
    opened.on_evaluation([{"set": "aime24", "reward_mean": 0.5}])
    opened.on_checkpoint(Path("runs/step-000002"))


def run(mine: Path, *names: str, limit_s: float = 60.0) -> list[str]:
    notes: list[str] = []
    sources = [f"{mine}:{name}" for name in names]
    logs = mine.parent / "logs"

    async def use_all() -> None:
        async with open_callbacks(sources, mine.parent, logs, notes.append, call_limit_s=limit_s) as opened:
            use(opened)

    asyncio.run(use_all())
    return notes


def fail(mine: Path, *names: str) -> tuple[list[str], float]:
    """What is said in a run that fails, and the seconds that its end takes."""
    notes: list[str] = []
    failed_at: list[float] = []
    sources = [f"{mine}:{name}" for name in names]

    async def use_and_fail() -> None:
        async with open_callbacks(sources, mine.parent, mine.parent, notes.append) as opened:
            use(opened)  # or the time limit of this test would end it
            failed_at.append(time.monotonic())
            raise StorageFailed("the disk is full")

    with pytest.raises(StorageFailed):
        asyncio.run(use_and_fail())
    return notes, time.monotonic() - failed_at[0]


def test_a_callback_is_told_everything_in_order_and_what_it_prints_is_in_a_log(mine: Path) -> None:
    assert run(mine, "Everything", "OnlySteps") == []
    assert told(mine.parent) == [
        ["step", {"step": 0, "loss": None, "reward_mean": math.inf}],
        ["step", {"step": 1, "loss": None, "reward_mean": math.inf}],
        ["evaluation", [{"set": "aime24", "reward_mean": 0.5}]],
        ["checkpoint", "step-000002"],
        ["end", None],
    ]
    assert (mine.parent / "logs" / "callback-0.log").read_text() == "made\n"
    assert (mine.parent / "logs" / "callback-1.log").read_text() == ""


def test_one_that_raises_is_said_once_and_goes_on_being_called(mine: Path) -> None:
    (note,) = run(mine, "Raises")
    assert "mine.py:Raises failed: on_step raised ValueError: step 0 (mine.py, line" in note
    assert [kind for kind, _ in told(mine.parent)] == ["evaluation", "checkpoint", "end"]
    assert (mine.parent / "logs" / "callback-0.log").read_text().count("Traceback") == 2


@pytest.mark.parametrize(("name", "num_told"), [("Hangs", 1), ("Dies", 0)])
def test_one_that_hangs_or_dies_is_said_once_and_the_others_are_told_on(mine: Path, name: str, num_told: int) -> None:
    (mine.parent / "told.jsonl").touch()
    (note,) = run(mine, name, "OnlySteps", limit_s=1.0)
    assert "longer than 1 s, or its process ended" in note or "were not over 1 s after" in note  # which comes first
    assert len(told(mine.parent)) == num_told


def test_what_one_that_gets_nothing_more_would_be_told_is_not_kept(mine: Path) -> None:
    async def outlive() -> None:
        async with open_callbacks([f"{mine}:Dies"], mine.parent, mine.parent, lambda _: None) as opened:
            opened.on_step({"step": 0})
            (callback,) = opened._callbacks
            await until(lambda: not callback._thread.is_alive())
            opened.on_step({"step": 1})
            assert callback._calls.empty()

    asyncio.run(outlive())


def test_a_process_that_a_callback_forks_is_told_nothing(mine: Path) -> None:
    os.mkfifo(fifo := mine.parent / "fifo")

    async def fork_and_go_on() -> None:
        async with open_callbacks([f"{mine}:Forks"], mine.parent, mine.parent, pytest.fail) as opened:
            opened.on_step({"step": 0})
            child = os.pidfd_open(int(await asyncio.to_thread(fifo.read_text)))
            await asyncio.to_thread(fifo.write_text, "come back")
            ended, _, _ = await asyncio.to_thread(select.select, [child], [], [], 10.0)
            assert ended, "it goes on in the process of its parent"
            os.close(child)
            opened.on_step({"step": 1})

    asyncio.run(fork_and_go_on())
    (_, first), (_, second), _ = told(mine.parent)
    assert first == second


def test_a_call_of_the_run_returns_before_the_callback_does(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "EARLY_LIMIT_S", 1.0)
    (note,), _ = fail(mine, "Hangs")
    assert "were not over 1 s after the end" in note


def test_the_end_waits_for_all_callbacks_at_once(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callbacks, "EARLY_LIMIT_S", 1.0)
    notes, end_s = fail(mine, *["Hangs"] * 4)
    assert [note.count("were not over 1 s after the end") for note in notes] == [1, 1, 1, 1]
    assert end_s < 3 * (1.0 + STOP_LIMIT_S)  # one after the other they take 4 times as long


@pytest.mark.parametrize("run_on", [asyncio.run, run_in_virtual_time])
def test_ctrl_c_ends_the_wait_for_callbacks_and_their_processes(mine: Path, run_on: Any) -> None:
    notes: list[str] = []
    others, processes = set(children_of(os.getpid())), set[int]()  # another test may have left a server of forks

    async def use_and_wait() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        loop.add_signal_handler(signal.SIGINT, task.cancel)
        async with open_callbacks([f"{mine}:Hangs"] * 2, mine.parent, mine.parent, notes.append) as opened:
            processes.update(set(children_of(os.getpid())) - others)
            use(opened)
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(asyncio.CancelledError):  # otherwise the wait of CALL_LIMIT_S ends without an error
            run_on(use_and_wait())
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(processes) >= 2
    assert not processes & set(children_of(os.getpid()))
    assert notes == []


SLOW = """
import time
from pathlib import Path

for _ in range(1000):
    if Path(__file__).with_name("may_go_on").exists():
        break
    time.sleep(0.01)
else:
    raise OSError("the event loop stood still")

class Slow:
    def on_end(self, error):
        pass
"""


@pytest.mark.parametrize("run_on", [asyncio.run, run_in_virtual_time])
def test_the_event_loop_goes_on_while_a_class_is_imported(tmp_path: Path, run_on: Any) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    notes: list[str] = []

    async def open_beside_others() -> None:
        asyncio.get_running_loop().call_soon((tmp_path / "may_go_on").touch)
        async with open_callbacks([f"{tmp_path}/slow.py:Slow"], tmp_path, tmp_path, notes.append):
            pass

    run_on(open_beside_others())
    assert notes == []


def test_a_run_that_is_stopped_while_a_class_is_imported_ends_its_process(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    others = set(children_of(os.getpid()))

    async def open_and_stop() -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().call_soon(task.cancel)
        async with open_callbacks([f"{tmp_path}/slow.py:Slow"], tmp_path, tmp_path, lambda _: None):
            pass

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(open_and_stop())
    assert set(children_of(os.getpid())) <= others


def test_a_callback_can_end_what_it_starts(mine: Path) -> None:
    assert run(mine, "StartsOthers") == []
    assert told(mine.parent)[-1] == ["ended", [-signal.SIGTERM, -signal.SIGTERM]]


def test_the_end_of_a_run_that_fails_is_told_with_its_error(mine: Path) -> None:
    assert fail(mine, "Everything")[0] == []
    assert told(mine.parent)[-1] == ["end", "the disk is full"]


MISTAKES = {
    "Everythin": "has no `Everythin`; it has `Everything`",
    "function": "`function` of .* is no class",
    "Misspelt": "has a method on_steps, which nothing calls; `on_step` is one",
    "Nothing": "has none of the methods on_step, on_evaluation, on_checkpoint, on_end",
    "TakesTwo": "`TakesTwo.on_step` is called with one argument, row, and takes others",
    "Waits": "`Waits.on_step` is async",
    "NeedsMore": "`NeedsMore` is made with `run_dir` or with nothing",
}


def test_mistakes_are_found_together_before_the_start_and_nothing_is_called(mine: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        check_callbacks([f"{mine}:{name}" for name in ("Everything", *MISTAKES)], mine.parent)
    for expected in MISTAKES.values():
        assert raised.match(expected)
    check_callbacks([f"{mine}:RaisesWhenMade"], mine.parent)
    assert list(mine.parent.iterdir()) == [mine]


def test_one_may_be_decorated_static_of_a_dict_or_made_by_a_wrapper(mine: Path) -> None:
    assert run(mine, "Decorated", "OfADict", "OfAClass", "ToldItsFolder") == []


def test_one_that_cannot_be_made_ends_the_run_before_it_begins(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"RaisesWhenMade\(\) raised OSError: no network"):
        run(mine, "RaisesWhenMade")


def test_a_module_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"importing nowhere\.at_all raised ModuleNotFoundError"):
        check_callbacks(["nowhere.at_all:Class"], tmp_path)
