"""Real runs through the other doors for agents: tools, and an agent loop."""

import json
import random

import pytest
import torch

from rollpacker.demo.task import END, NUM_PLACES, WORDS, Example, Language
from rollpacker.demo.warm_start import make_model
from rollpacker.runtime.rollout.replay import replay
from tests.e2e.launched import LaunchedRun, rows, small_run

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

NUM_STEPS = 2

TOOLS = f'''
def look_up(place: int):
    """Say what is behind a place.

    Args:
        place: A number.
    """
    if place % 10 == 0:
        raise KeyError(place)
    return str((place * 7 + 13) % {NUM_PLACES})


def is_right(response, ground_truth):
    return float(response.strip() == ground_truth)
'''

OPENS, CLOSES = '<tool_call> {"name": "look_up", "arguments": {"place":', "}} </tool_call>"
TEMPLATE = (
    "{% for t in tools %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.content.split()[0] }}{{ '<eos>' if m.role == 'assistant' else ' ' }}{% endfor %}"
)


def asked_and_answered(numbers):
    """A place, what is behind it, which only the tool knows, and the answer that repeats it."""
    place, behind = numbers.randrange(NUM_PLACES), numbers.choice([*WORDS[7:], "Error:"])
    return Example(f"look_up {place}", f"{OPENS} {place} {CLOSES} {END} {behind} {behind}")


LANGUAGE = Language(
    words=(*WORDS, "look_up", "Error:", *dict.fromkeys(f"{OPENS} {CLOSES}".split())), example=asked_and_answered
)


@pytest.fixture(scope="session")
def tool_inputs(made_once):
    def make(folder):
        torch.set_num_threads(1)
        make_model(folder / "model", num_iterations=200, language=LANGUAGE)
        lines = [
            {"id": str(place), "domain": "d", "prompt": str(place), "ground_truth": str((place * 7 + 13) % NUM_PLACES)}
            for place in random.Random(1).sample(range(NUM_PLACES), 24)
        ]
        (folder / "prompts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "tools.py").write_text(TOOLS)
        (folder / "template.jinja").write_text(TEMPLATE)

    return made_once("tools", make)


def test_a_model_calls_a_tool_and_only_its_own_words_are_trained_and_scored(tool_inputs, tmp_path):
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(tool_inputs, "system=tail", "engine.num_engines=1", "reward=math"),
        *(f"run.num_steps={NUM_STEPS}", f"reward.function={tool_inputs}/tools.py:is_right"),
        *("environment=tools", f"environment.tools=[{tool_inputs}/tools.py:look_up]", "environment.max_turns=3"),
        "environment.max_open=2",  # each is a process that imports for a second or two
        *("data.plain_as_chat=true", f"data.chat_template={tool_inputs}/template.jinja"),
    )
    assert run.wait() == 0, run.output()
    accepted = [row for row in rows(run.run_dir, "responses") if row["accepted"]]
    assert len(accepted) == NUM_STEPS * 8 * 4
    right = [row for row in accepted if row["reward"] == 1]
    assert len(right) > len(accepted) // 4, "what is behind a place can be known from the tool alone"
    assert any((row["actor"], row["activity"]) == ("reward", "score") for row in rows(run.run_dir, "intervals"))
    assert replay(run.run_dir).commands
    run.assert_nothing_is_left()


LOOP = """
from rollpacker.environments.agent_loop import AgentLoopBase, AgentLoopOutput
from rollpacker.rewards.walk import STEPS, read_task


class Walk(AgentLoopBase):
    async def run(self, sampling_params, *, prompt_ids, ground_truth, **row):
        place, target = read_task(ground_truth)
        tokens, mask, reward = list(prompt_ids), [], 0.0
        while place < target:
            output = await self.server_manager.generate("w", prompt_ids=tokens, sampling_params=sampling_params)
            tokens += output.token_ids
            mask += [1] * len(output.token_ids)
            words = self.tokenizer.decode(output.token_ids, skip_special_tokens=True).split()
            if len(words) != 2 or words[0] not in STEPS or words[1] != str(place + STEPS[words[0]]):
                break
            place += STEPS[words[0]]
            reward = float(place == target)
            said = self.tokenizer.encode(f"{words[1]} {target} :", add_special_tokens=False)
            tokens += said
            mask += [0] * len(said)
        start = len(tokens) - len(mask)
        return AgentLoopOutput(
            prompt_ids=tokens[:start], response_ids=tokens[start:], response_mask=mask, reward_score=reward
        )
"""


def test_an_agent_loop_of_ones_own_is_trained_as_an_environment_is(turns_inputs, tmp_path):
    (tmp_path / "own.py").write_text(LOOP)
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(turns_inputs, "system=flash", "engine.num_engines=1", "reward=environment"),
        *(f"run.num_steps={NUM_STEPS}", "rollout.max_response_tokens=96"),
        *("environment=loop", f"environment.loop={tmp_path}/own.py:Walk", "environment.max_turns=12"),
        "environment.max_open=2",  # each has a tokenizer, which takes seconds to import
    )
    assert run.wait() == 0, run.output()
    accepted = [row for row in rows(run.run_dir, "responses") if row["accepted"]]
    assert len(accepted) == NUM_STEPS * 8 * 4
    assert 0 < sum(row["reward"] for row in accepted) < len(accepted)
    assert {row["reward_reason"] for row in accepted} <= {"terminated", "limit"}
    assert replay(run.run_dir).commands
    run.assert_nothing_is_left()


ALWAYS_AT_0 = "{% for m in messages %}{{ m.content ~ '<eos>' if m.role == 'assistant' else '0 20 : ' }}{% endfor %}"
"""A chat template that tells a model of walks the same, whatever is on the lake: its step is 1, 2 or 3, an action."""


def test_an_environment_of_gymnasium_is_trained_as_it_is(turns_inputs, tmp_path):
    (tmp_path / "template.jinja").write_text(ALWAYS_AT_0)
    lines = [json.dumps({"id": str(seed), "domain": "d", "prompt": "Go.", "ground_truth": ""}) for seed in range(24)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(lines))
    run = LaunchedRun(
        tmp_path / "run",
        *small_run(turns_inputs, "system=tail", "engine.num_engines=1", "reward=environment"),
        *(f"run.num_steps={NUM_STEPS}", "rollout.max_response_tokens=96"),
        *("environment=gym", "environment.env=gymnasium:make", "environment.max_turns=8", "environment.max_open=4"),
        "environment.arguments={id: FrozenLake-v1, render_mode: ansi, is_slippery: false}",
        *("data.plain_as_chat=true", f"data.chat_template={tmp_path}/template.jinja"),
        f"data.path={tmp_path}/prompts.jsonl",
    )
    assert run.wait() == 0, run.output()
    accepted = [row for row in rows(run.run_dir, "responses") if row["accepted"]]
    assert len(accepted) == NUM_STEPS * 8 * 4
    assert {row["reward_reason"] for row in accepted} & {"terminated"}, "some have fallen into a hole"
    assert replay(run.run_dir).commands
    run.assert_nothing_is_left()
