"""Real runs through the other doors for agents: tools."""

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
        *(f"run.num_steps={NUM_STEPS}", "system.stream=false", f"reward.function={tool_inputs}/tools.py:is_right"),
        *("environment=tools", f"environment.tools=[{tool_inputs}/tools.py:look_up]", "environment.max_turns=3"),
        *("data.plain_as_chat=true", f"data.chat_template={tool_inputs}/template.jinja"),
    )
    assert run.wait() == 0, run.output()
    accepted = [row for row in rows(run.run_dir, "responses") if row["accepted"]]
    assert len(accepted) == NUM_STEPS * 8 * 4
    right = [row for row in accepted if row["reward"] == 1]
    assert len(right) > len(accepted) // 4, "what is behind a place can be known from the tool alone"
    assert replay(run.run_dir).commands
    run.assert_nothing_is_left()
