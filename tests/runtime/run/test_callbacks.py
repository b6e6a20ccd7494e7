"""Classes of a user's that are told what happened, however they behave."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from rollpacker.core.errors import ConfigError, StorageFailed
from rollpacker.runtime.run.callbacks import Callbacks, check_callbacks, open_callbacks

MINE = """
import json
import os
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

class Misspelt:
    def on_steps(self, row):
        pass

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


def use(callbacks: Callbacks) -> None:
    for step in range(2):
        callbacks.on_step({"step": step, "loss": None, "reward_mean": math.inf})
    callbacks.on_evaluation([{"set": "aime24", "reward_mean": 0.5}])
    callbacks.on_checkpoint(Path("runs/step-000002"))


def run(mine: Path, *names: str, limit_s: float = 60.0) -> list[str]:
    notes: list[str] = []
    sources = [f"{mine}:{name}" for name in names]
    with open_callbacks(sources, mine.parent, mine.parent / "logs", notes.append, call_limit_s=limit_s) as callbacks:
        use(callbacks)
    return notes


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


def test_a_call_of_the_run_returns_before_the_callback_does(mine: Path) -> None:
    notes: list[str] = []

    def fail() -> None:
        with open_callbacks([f"{mine}:Hangs"], mine.parent, mine.parent, notes.append) as callbacks:
            use(callbacks)  # or the time limit of this test would end it
            raise StorageFailed("the disk is full")  # then the end waits for 5 s

    with pytest.raises(StorageFailed):
        fail()
    assert "were not over 5 s after the end" in notes[0]


def test_the_end_of_a_run_that_fails_is_told_with_its_error(mine: Path) -> None:
    with pytest.raises(StorageFailed), open_callbacks([f"{mine}:Everything"], mine.parent, mine.parent, print):
        raise StorageFailed("the disk is full")
    assert told(mine.parent) == [["end", "the disk is full"]]


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


def test_one_that_cannot_be_made_ends_the_run_before_it_begins(mine: Path) -> None:
    with pytest.raises(ConfigError, match=r"RaisesWhenMade\(\) raised OSError: no network"):
        run(mine, "RaisesWhenMade")


def test_a_module_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"importing nowhere\.at_all raised ModuleNotFoundError"):
        check_callbacks(["nowhere.at_all:Class"], tmp_path)
