"""Environments of the package `verifiers`, as anybody writes them, in an interpreter that has it."""

import asyncio
import dataclasses
import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain, PromptId, RequestId
from rollpacker.environments.pool import EnvironmentPool
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.environments.starting import EnvironmentStarter
from rollpacker.environments.trial import prompt_rows, try_environment
from rollpacker.protocols.environment import EnvironmentReset, EnvironmentTurn
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import FinishReason, Prompt
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import LaunchedRun, rows, small_run
from tests.environments.answers import answers_of
from tests.environments.test_isolation import needs_bubblewrap
from tests.sim.composed import composed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

WANTED = "verifiers>=0.4,<0.5"
INSTALL_S = 240

REVERSE = '''
"""A text, reversed, in one turn."""

import difflib
import re

import verifiers.v1 as vf

__all__ = ["ReverseTaskset"]


class ReverseData(vf.TaskData):
    answer: str


class ReverseTask(vf.Task[ReverseData]):
    @vf.reward(weight=1.0)
    async def similarity(self, trace: vf.Trace) -> float:
        found = re.search(r"<reversed_text>(.*?)</reversed_text>", trace.last_reply, re.DOTALL)
        return difflib.SequenceMatcher(None, found.group(1).strip() if found else "", self.data.answer).ratio()


class ReverseConfig(vf.TasksetConfig):
    texts: list[str] = ["abc", "over there"]


class ReverseTaskset(vf.Taskset[ReverseTask, ReverseConfig]):
    def load(self):
        if not self.config.texts:
            raise FileNotFoundError("there is no data set of texts")
        system = "Reverse the text. Put your answer in <reversed_text> tags."
        for text in self.config.texts:
            yield ReverseTask(ReverseData(prompt=text, system_prompt=system, answer=text[::-1]), self.config.task)
'''

WALK = '''
"""From one number to another, a step and a number per turn."""

import verifiers.v1 as vf

__all__ = ["WalkEnv", "WalkTaskset"]


class WalkData(vf.TaskData):
    start: int
    target: int


class WalkTask(vf.Task[WalkData]):
    @vf.reward
    async def arrives(self, trace: vf.Trace) -> float:
        place = self.data.start
        for message in trace.assistant_messages:
            place = after(place, message.content)
        return float(place == self.data.target)


def after(place, turn):
    match turn.split():
        case ["raise"]:
            raise ValueError("that is no walk")
        case [step, number] if step in {"+1", "+2", "+3", "+4"} and number == str(place + int(step)):
            return int(number)
    return 10**6


class WalkTaskset(vf.Taskset[WalkTask, vf.TasksetConfig]):
    def load(self):
        for start in range(24):
            walk = WalkData(start=start, target=start + 6, prompt=f"{start} {start + 6} :")
            yield WalkTask(walk, self.config.task)


class WalkEnv(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        place, target = task.data.start, task.data.target
        async with agents.agent.interaction(task) as walk:
            said = await walk.turn()
            while not said.terminated and (place := after(place, said.last_reply)) < target:
                said = await walk.turn(f"{place} {target} :")
        walk.trace.record_reward("begins", 0.25 * (walk.trace.assistant_messages[0].content == "+2 3"))
'''

ASKED = '''
"""A number to say, for which the user asks: its tasks have no prompt."""

import verifiers.v1 as vf

__all__ = ["AskedEnv", "AskedTaskset"]


class AskedData(vf.TaskData):
    number: int
    hint: str | None


class AskedTask(vf.Task[AskedData]):
    pass


class AskedTaskset(vf.Taskset[AskedTask, vf.TasksetConfig]):
    def load(self):
        for number in range(10):
            yield AskedTask(AskedData(number=number, hint=None, prompt=None), self.config.task)


class AskedEnv(vf.Env[vf.SingleAgentEnvConfig]):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as asked:
            said = await asked.turn(f"Say {task.data.number}.")
        asked.trace.record_reward("said", float(said.last_reply == str(task.data.number)), 1.0)
'''

ADDED = '''
"""A sum, which a tool adds up."""

import verifiers.v1 as vf

__all__ = ["AddedTaskset"]


class Adder(vf.Toolset[vf.SharedToolsetConfig]):
    TOOL_PREFIX = None

    @vf.tool
    async def add(self, first: int, second: int) -> str:
        """Add two numbers."""
        if second == 13:
            raise ValueError("not that number")
        return str(first + second)


class AddedData(vf.TaskData):
    result: int


class AddedTask(vf.Task[AddedData]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == str(self.data.result))


class AddedConfig(vf.TasksetConfig):
    tools: vf.SharedToolsetConfig = vf.SharedToolsetConfig()


class AddedTaskset(vf.Taskset[AddedTask, AddedConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Adder(config.tools)]

    def load(self):
        for number in range(24):
            yield AddedTask(AddedData(prompt=f"What is {number} + 6?", result=number + 6), self.config.task)


if __name__ == "__main__":
    Adder.run()
'''

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '<eos>' if m.role == 'assistant' else ' ' }}{% endfor %}"


@pytest.fixture(scope="session")
def python(made_once):
    """An interpreter with `verifiers` and two tasksets, made in half a minute; what it can share with ours is ours."""

    def make(folder):
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder / "venv")}))
        packages.joinpath("shared.pth").write_text(sysconfig.get_path("purelib"))
        install = f"{folder}/venv/bin/python -m pip install --quiet '{WANTED}'"
        first_import = f"{folder}/venv/bin/python -c 'import verifiers.v1'"  # leaves the others less to compile
        try:
            command = ["sh", "-c", f"{install} && {first_import}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S, check=False)
            reason = "\n".join(done.stderr.splitlines()[-3:]) if done.returncode else ""
        except subprocess.TimeoutExpired:
            reason = f"it took longer than {INSTALL_S} s"
        (folder / "reason").write_text(reason)
        packages.joinpath("reverse_lines.py").write_text(REVERSE)
        packages.joinpath("walk_in_turns.py").write_text(WALK)
        packages.joinpath("asked_number.py").write_text(ASKED)
        packages.joinpath("added_numbers.py").write_text(ADDED)

    folder = made_once("verifiers", make)
    if reason := (folder / "reason").read_text():
        pytest.skip(f"{WANTED} cannot be installed: {reason}")
    return str(folder / "venv/bin/python")


def config_of(*words):
    return composed("model.path=model", "environment=verifiers", *words)


def turn(text, finish_reason=FinishReason.STOP):
    return EnvironmentTurn(
        text=text, spelled=text, token_ids=(5, 1), logprobs=(-1.0, -1.0), finish_reason=finish_reason
    )


def played(python, env, prompt, *episodes, is_isolated=False):
    """The answers of an environment to the resets and the turns of some episodes, in one process."""

    async def play():
        source = "rollpacker.environments.verifiers:Verifiers"
        arguments = {"env": env, "arguments": {}, "max_turns": 3, "tool_parser": "hermes"}
        starter = EnvironmentStarter(source, arguments, python=python, is_isolated=is_isolated)
        pool = EnvironmentPool(starter, limit_s=60.0, sends_tokens=True)
        sampling = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
        start = EnvironmentReset(seed=1, options=prompt.options, messages=prompt.messages, sampling_params=sampling)
        try:
            return [await episode(pool, RequestId(0, PromptId(0, "p"), index), start) for index in range(len(episodes))]
        finally:
            await pool.close()

    async def episode(pool, request, start):
        pool.reset(request, 0, start)
        answers = await answers_of(pool)
        for call, each in enumerate(episodes[request.sample], 1):
            pool.step(request, call, each)
            answers += await answers_of(pool)
        pool.end(request)
        return answers

    return asyncio.run(play())


@needs_bubblewrap
def test_its_tasks_are_prompts_and_its_own_rewards_count(python):
    words = (
        "environment.env=reverse-lines",
        f"environment.python={python}",
        "environment.arguments={taskset: {texts: [abc, over there, three]}}",
        "environment.isolation=bubblewrap",
        "data.max_prompts=2",
    )
    prompts, _ = prompts_to_train(config_of(*words))
    assert [prompt.messages[-1]["content"] for prompt in prompts] == ["abc", "over there"]
    assert {prompt.domain for prompt in prompts} == {"reverse-lines"}
    assert len(prompt_rows(config_of(*words, "data.solve_rates=rates.parquet"))) == 3
    assert prompts[0].messages[0]["role"] == "system"
    episodes = [turn("<reversed_text>cba</reversed_text>")], [turn("cba")]
    right, plain = played(python, "reverse-lines", prompts[0], *episodes, is_isolated=True)
    for (begun, ended), reward in ((right, 1.0), (plain, 0.0)):
        assert (begun.failure, begun.observation) == (None, [])
        assert (ended.reward, ended.is_terminated) == (reward, True)


def test_what_it_says_follows_a_turn_and_after_the_last_that_may_come_it_is_scored(python):
    task = {"idx": 1, "prompt": "1 7 :", "start": 1, "target": 7}
    prompt = Prompt(
        key="1",
        domain=Domain("walk"),
        messages=({"role": "user", "content": "1 7 :"},),
        text=None,
        reference=AnswerReference(text=""),
        row={"task": task},
    )
    arrives, ends, is_cut, answers, breaks = played(
        python,
        "walk-in-turns",
        prompt,
        [turn("+4 5"), turn("+2 7")],
        [turn("+1 2"), turn("+1 3"), turn("+1 4")],
        [turn("+2 3", FinishReason.LENGTH)],
        [turn("+2 3"), turn("+4 7", FinishReason.LENGTH)],
        [turn("raise")],
    )
    assert arrives[1].observation == [{"role": "user", "content": "5 7 :"}]
    assert (arrives[1].reward, arrives[1].is_terminated) == (0.0, False)
    assert (arrives[2].reward, arrives[2].is_terminated) == (1.0, True)
    assert (ends[3].reward, ends[3].is_terminated) == (0.0, True)
    assert (is_cut[1].reward, is_cut[1].is_truncated) == (0.0, True)
    assert (answers[2].reward, answers[2].is_terminated) == (1.25, True)
    assert breaks[1].failure == "environment_error"
    assert "no walk" in breaks[1].problem


def test_where_its_user_opens_the_conversation_what_an_episode_asks_first_is_the_prompt(python):
    words = ("environment.env=asked-number", f"environment.python={python}", "data.max_prompts=2")
    prompts, _ = prompts_to_train(config_of(*words))
    assert [prompt.messages for prompt in prompts] == [({"role": "user", "content": f"Say {n}."},) for n in range(2)]
    right, wrong = played(python, "asked-number", prompts[1], [turn("1")], [turn("2")])
    assert (right[0].failure, right[1].reward, wrong[1].reward) == (None, 1.0, 0.0)
    prompt = dataclasses.replace(prompts[1], messages=({"role": "user", "content": "Say it."},))
    (other,) = played(python, "asked-number", prompt, [])
    assert other[0].failure == "environment_error"
    assert "message 0 of a request is 'Say 1.' of the user, and was 'Say it.'" in other[0].problem


def test_its_tools_are_of_the_prompts_and_what_they_give_or_why_not_follows_the_turn_that_calls(python):
    words = ("environment.env=added-numbers", f"environment.python={python}", "data.max_prompts=2")
    prompts, _ = prompts_to_train(config_of(*words))
    for each in prompts:
        (tool,) = each.row["tools"]
        assert tool["function"]["name"] == "add"
        assert tool["function"]["description"] == "Add two numbers."
        assert tool["function"]["parameters"]["properties"].keys() == {"first", "second"}
    calls, fails, names_none, is_broken, is_cut = played(
        python,
        "added-numbers",
        prompts[1],
        [turn(called("add", first=1, second=6) + called("add", first=2, second=2)), turn("7")],
        [turn(called("add", first=1, second=13)), turn("8")],
        [turn(called("subtract", first=1))],
        [turn("<tool_call>{add</tool_call>")],
        [turn(called("add", first=1, second=6), FinishReason.LENGTH)],
    )
    assert [each["content"] for each in calls[1].observation] == ["7", "4"]
    assert {(each["role"], each["name"]) for each in calls[1].observation} == {("tool", "add")}
    assert (calls[2].reward, calls[2].is_terminated) == (1.0, True)
    assert "not that number" in fails[1].observation[0]["content"]
    assert (fails[2].reward, fails[2].is_terminated) == (0.0, True)
    assert names_none[1].observation[0]["content"] == "Error: there is no tool subtract; there are add"
    assert "a call cannot be read" in is_broken[1].observation[0]["content"]
    assert (is_cut[1].reward, is_cut[1].is_truncated) == (0.0, True)


def called(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def prompt():
    return Prompt(key="p", domain=Domain("d"), messages=(), text="x", reference=AnswerReference(text=""))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["environment.env=reverse-line"], r"(?s)'reverse-line' not found.*pip install"),
        (["environment.env=reverse-lines", "environment.arguments={taskset: {texts: []}}"], "no data set of texts"),
    ],
)
def test_one_that_is_not_there_or_has_no_data_is_refused_with_the_reason(python, words, says):
    with pytest.raises(ConfigError, match=says):
        prompts_to_train(config_of(f"environment.python={python}", *words))


def test_a_prompt_file_without_tasks_is_refused_with_what_its_lines_lack(python):
    words = ("environment.env=reverse-lines", f"environment.python={python}", "data.path=own.jsonl")
    with pytest.raises(ConfigError, match="has no `task`"):
        try_environment(config_of(*words, "environment.max_restarts=0"), prompt())


def test_one_that_is_published_is_trained_as_others_are(turns_inputs, python, tmp_path):
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(turns_inputs, "system=tail", "engine.num_engines=1", "reward=environment", "data.path=null"),
        *("run.num_steps=2", "rollout.num_prompts=4", "rollout.max_response_tokens=64", "environment=verifiers"),
        *("environment.env=walk-in-turns", f"environment.python={python}", "environment.max_turns=8"),
        *("environment.max_open=2", f"data.chat_template={tmp_path}/template.jinja"),
    )
    assert run.wait() == 0, run.output()
    accepted = [row for row in rows(run.run_dir, "responses") if row["accepted"]]
    assert len(accepted) == 2 * 4 * 4
    assert 0 < sum(row["reward"] for row in accepted) < len(accepted)
    assert max(row["num_turns"] for row in accepted) > 1
    assert {row["reward_reason"] for row in accepted} <= {"terminated", "truncated", "limit"}
    assert replay(run.run_dir).commands
    run.assert_nothing_is_left()
