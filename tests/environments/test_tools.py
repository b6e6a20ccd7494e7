"""Tools as an environment: calls are answered in their order, and nothing that is written or raised ends anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rollpacker.environments import python_tool
from rollpacker.environments.tools import Tools
from tests.environments.test_isolation import needs_bubblewrap

CALCULATE = "rollpacker.environments.calculator:calculate"

OWN = '''
import argparse

prepared = []


def prepare_tools():
    prepared.append(1)


def table(size: int, title: str = ""):
    """Make one."""
    return {"title": title, "rows": [prepared] * size}


def half(text: str):
    """Give half a pair of UTF-16."""
    return "\\ud800"


def place(text: str):
    """Name one."""
    return {"city": "K\\u00f6ln", "cut": "\\ud800"}


def fail(text: str):
    """Fail."""
    raise KeyError(text)


def parse(words: str):
    """Read an option."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int)
    return parser.parse_args(words.split()).size
'''


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def contents(tools: Tools, action: str) -> list[str]:
    messages, reward, is_over, is_truncated, _ = tools.step(action)
    assert (reward, is_over, is_truncated) == (0.0, not messages, False)
    assert {message["role"] for message in messages} <= {"tool"}
    return [message["content"] for message in messages]


@pytest.fixture
def tools(tmp_path: Path) -> Tools:
    (tmp_path / "own.py").write_text(OWN)
    own = [f"{tmp_path}/own.py:{name}" for name in ("table", "half", "place", "fail", "parse")]
    made = Tools([CALCULATE, *own], "hermes")
    assert made.reset() == ([], {})
    return made


def test_calls_are_answered_in_their_order_by_messages_of_their_tools(tools: Tools):
    messages = tools.step(call("calculate", expression="1/3 + 0.5") + call("table", size=1))[0]
    assert messages[0] == {"role": "tool", "content": "5/6", "name": "calculate"}
    assert json.loads(messages[1]["content"]) == {"title": "", "rows": [[1]]}


def test_a_result_that_is_no_text_reaches_the_model_with_its_letters(tools: Tools):
    assert contents(tools, call("place", text="")) == ['{"city": "Köln", "cut": "\ud800"}']


@pytest.mark.parametrize(
    ("action", "says"),
    [
        (call("fail", text="x"), "Error: KeyError: 'x'"),
        (call("parse", words="--size x"), "Error: SystemExit: 2"),
        (call("calculate", text="1"), "unexpected keyword argument 'text'"),
        (call("calculate", expression="1/0"), "ZeroDivisionError"),
        (call("search", text="1"), "there is no tool search; there are calculate, table"),
        ("<tool_call>{", "a call cannot be read"),
    ],
)
def test_what_a_call_raises_and_a_call_that_is_none_are_messages(tools: Tools, action: str, says: str):
    (content,) = contents(tools, action)
    assert content.startswith("Error")
    assert says in content


STATEFUL = '''
prepared = []
memory = {}


def prepare_tools():
    prepared.append(1)


def reset_tools():
    memory.clear()


def remember(key: str, value: str):
    """Keep it."""
    memory[key] = value


def recall(key: str):
    """Give it back."""
    return [memory.get(key), len(prepared)]
'''


@pytest.mark.parametrize("place", ["{folder}/stateful.py", "stateful_tools.stateful"])
def test_tools_of_one_file_share_its_state_which_is_prepared_once_and_reset_for_each_trajectory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
):
    folder = tmp_path / "stateful_tools"
    folder.mkdir()
    (folder / "stateful.py").write_text(STATEFUL)
    monkeypatch.syspath_prepend(tmp_path)
    place = place.format(folder=folder)
    made = Tools([f"{place}:remember", f"{place}:recall"], "hermes")
    made.reset()
    assert contents(made, call("remember", key="a", value="1") + call("recall", key="a")) == ["null", '["1", 1]']
    made.reset()
    assert contents(made, call("recall", key="a")) == ["[null, 1]"]


def test_a_turn_without_a_call_ends_the_trajectory(tools: Tools):
    assert contents(tools, "It is 5/6.<|im_end|>") == []


@needs_bubblewrap
def test_python_runs_in_the_sandbox_and_shows_what_it_prints_its_last_value_and_its_errors(tmp_path: Path):
    made = Tools(["rollpacker.environments.python_tool:python"], "hermes")
    try:
        assert contents(made, call("python", code="x = 20\nprint(x)\nx + 1")) == ["20\n21\n"]
        (error,) = contents(made, call("python", code="x"))
        assert "NameError: name 'x' is not defined" in error
        assert "rollpacker" not in error
        assert contents(made, call("python", code="x ="))[0].startswith('  File "program.py", line 1\n')
        assert contents(made, call("python", code="print('a')\nraise SystemExit('bye')")) == ["a\nSystemExit: bye\n"]
        assert contents(made, call("python", code="print('a'); exit()")) == ["a\n"]
        (tmp_path / "secret").write_text("secret")
        (error,) = contents(made, call("python", code=f"open('{tmp_path}/secret').read()"))
        assert "FileNotFoundError" in error
        assert contents(made, call("python", code="import os; os._exit(3)")) == [
            "Error: the program ended with an error"
        ]
        assert contents(made, call("python", code="print('x' * 17_000_000)")) == ["Error: its output is too long"]
        (long,) = contents(made, call("python", code="print('x' * 30_000)"))
        assert len(long) < python_tool.MOST_CHARACTERS + 100
        assert "characters left out" in long
    finally:
        python_tool._supervisor().close()
        python_tool._supervisor.cache_clear()


def test_what_a_model_writes_as_plain_text_is_what_the_function_is_hinted_to_take(tmp_path: Path):
    (tmp_path / "typed.py").write_text(
        "from typing import Literal, Optional\n\n\n"
        "def kinds(number: int, text: str, some: list[int], flag: bool, maybe: str | None = None):\n"
        '    """Say them."""\n'
        "    return [number, text, some, flag, maybe]\n\n\n"
        "def texts(some: list[str], pairs: dict[str, int], fixed: tuple[str, ...], few: list[str] | None,\n"
        "          size: Optional[Literal['3', '4']]):\n"
        '    """Say them."""\n'
        "    return [some, pairs, fixed, few, size]\n"
    )
    tools = Tools([f"{tmp_path}/typed.py:{name}" for name in ("kinds", "texts")], "qwen3_coder")

    def answer(name: str = "kinds", /, **arguments: str) -> str:
        parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
        (content,) = contents(tools, f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>")
        return content

    given = answer(number="3", text="3", some="[1, 2]", flag="True", maybe="null")
    assert json.loads(given) == [3, "3", [1, 2], True, "null"]
    assert json.loads(answer(number="three", text="", some="[1", flag="false")) == ["three", "", "[1", False, None]
    given = answer("texts", some='["a"]', pairs='{"a": 1}', fixed='["a", "b"]', few='["3"]', size="3")
    assert json.loads(given) == [["a"], {"a": 1}, ["a", "b"], ["3"], "3"]
    assert "missing" in answer(number="3")
    assert "unexpected" in answer(number="3", other="1")
