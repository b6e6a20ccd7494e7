from __future__ import annotations

import venv
from pathlib import Path
from typing import Any

import pytest

from rollpacker.config.schema import RunConfig
from rollpacker.config.sections import environment as section
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.environments.prompts import prompts_to_train
from rollpacker.environments.trial import first_observation, prompt_rows, tool_schemas, try_environment
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt
from tests.sim.composed import composed

WALK = "rollpacker.environments.walk_turns:WalkTurns"
LAKE = "rollpacker.environments.frozen_lake:FrozenLake"
DELAYED = "rollpacker.environments.delayed:Delayed"
REMEDY = "Correct the environment, or the prompt's line"
CALCULATE = "rollpacker.environments.calculator:calculate"


def config_of(*words: str) -> RunConfig:
    return composed("model.path=model", "data.path=prompts.jsonl", *words)


def prompt(answer: str = "3 20") -> Prompt:
    return Prompt(key="p", domain=Domain("walk"), messages=(), text="3 20 :", reference=AnswerReference(text=answer))


def try_it(env: str, arguments: dict[str, Any], *more_words: str, answer: str = "3 20") -> tuple[str, ...]:
    words = ["environment=gym", f"environment.env={env}", "environment.max_restarts=1", *more_words]
    given = ", ".join(f"{name}: {value!r}" for name, value in arguments.items())
    return try_environment(config_of(*words, f"environment.arguments={{{given}}}"), prompt(answer))


def test_an_environment_that_can_be_reset_is_fine():
    assert try_it(WALK, {}) == ()


@pytest.mark.parametrize(
    ("env", "arguments", "says"),
    [
        ("rollpacker.environments.walk_turns:WalkTurn", {}, "it has `WalkTurns`"),
        ("rollpacker.environments.walk_turn:WalkTurns", {}, "No module named"),
        (WALK, {"speed": 3}, "takes no arguments"),
        ("rollpacker.environments.calculator:compute", {}, "missing 1 required positional"),
        ("rollpacker.environments.walk_turns:STEPS", {}, "which makes no environment"),
        ("sys:exit", {}, "making sys:exit raised SystemExit"),
        (DELAYED, {"env": WALK, "p_crash_at_reset": 1.0}, "its process died"),
    ],
)
def test_one_that_cannot_be_made_or_reset_is_refused_with_the_reason(env: str, arguments: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        try_it(env, arguments)


def test_a_step_that_returns_no_step_is_refused_and_one_that_raises_may_be_for_the_turn_and_is_noted(tmp_path: Path):
    step = "return 'go on', 0.0, False, {}"
    own = "class Env:\n    def reset(self):\n        return 'go', {{}}\n    def step(self, action):\n        {}\n"
    (tmp_path / "old.py").write_text(own.format(step))
    with pytest.raises(ConfigError, match=r"old\.py:Env cannot be used.*step returned \('go on', 0\.0, False"):
        try_it(f"{tmp_path}/old.py:Env", {})
    (tmp_path / "strict.py").write_text(own.format("raise ValueError(action)"))
    (note,) = try_it(f"{tmp_path}/strict.py:Env", {})
    assert "strict.py:Env: a step on the turn '0', which no model wrote, failed: it raised ValueError: 0 (str" in note
    (tmp_path / "still.py").write_text(own.format("__import__('time').sleep(1000)"))
    (note,) = try_it(f"{tmp_path}/still.py:Env", {}, "environment.turn_timeout_s=1")
    assert "its process died, or took longer than environment.turn_timeout_s=1. Correct" in note


def test_a_reset_that_hangs_is_told_from_one_that_dies():
    words = ("environment=gym", f"environment.env={DELAYED}", "environment.max_restarts=0")
    sleeping = config_of(
        *words, f"environment.arguments={{env: '{WALK}', median_s: 100}}", "environment.reset_timeout_s=1"
    )
    with pytest.raises(
        ConfigError, match=rf"(?s)there was none after 1 s.*\n{REMEDY}, or raise environment\.reset_timeout_s\.$"
    ):
        try_environment(sleeping, prompt())


ASKS = """
class Env:
    def reset(self, sampling_params, max_tokens, options, messages, text):
        return f"{sampling_params} {max_tokens} {options} {messages} {text}", {}

    def step(self, action):
        return "", 0.0, True, False, {}

    def prompts(self, most, most_of_endless):
        return [{"most": most, "most_of_endless": most_of_endless}]
"""


def test_a_reset_gets_in_the_trial_what_it_gets_in_a_run(tmp_path: Path):
    (tmp_path / "own.py").write_text(ASKS)
    words = ("environment=gym", f"environment.env={tmp_path}/own.py:Env", "environment.max_restarts=0")
    config = config_of(*words, "rollout.temperature=0.7", "rollout.max_response_tokens=99")
    sampling = "{'temperature': 0.7, 'top_p': 1.0, 'top_k': 0}"
    assert first_observation(config, prompt()) == f"{sampling} 99 {{'ground_truth': '3 20'}} [] 3 20 :"


@pytest.mark.parametrize(("solve_rates", "most"), [("null", 2), ("rates.parquet", None)])
def test_of_an_environments_prompts_all_are_asked_for_where_some_are_left_out_before_they_are_counted(
    tmp_path: Path, solve_rates: str, most: int | None
):
    (tmp_path / "own.py").write_text(ASKS)
    words = ("environment=gym", f"environment.env={tmp_path}/own.py:Env", "data.max_prompts=2")
    assert prompt_rows(config_of(*words, f"data.solve_rates={solve_rates}")) == [{"most": most, "most_of_endless": 2}]


def test_a_process_may_start_as_slowly_as_a_reset_may_be(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(section, "START_LIMIT_S", 0.05)
    words = ("environment=gym", f"environment.env={WALK}")
    with pytest.raises(ConfigError, match=r"not ready after 0\.05 s"):
        try_environment(config_of(*words, "environment.reset_timeout_s=0.01"), prompt())
    try_environment(config_of(*words, "environment.reset_timeout_s=60"), prompt())


def test_a_prompt_that_it_does_not_take_is_named():
    with pytest.raises(ConfigError, match=rf"(?s)the first prompt, 'p'.*start and target.*\n{REMEDY}\.$"):
        try_it(WALK, {}, answer="no walk")


def test_the_schemas_of_tools_are_those_of_their_hints_and_docstrings():
    (schema,) = tool_schemas(config_of("environment=tools", f"environment.tools=[{CALCULATE}]"))
    function = schema["function"]
    assert function["name"] == "calculate"
    assert function["description"].startswith("Compute a number exactly")
    assert function["parameters"]["properties"]["expression"]["type"] == "string"
    assert function["parameters"]["required"] == ["expression"]


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("calculate", r"it has `compute`|has no `calculate`"),
        ("undocumented", "no docstring"),
        ("unhinted", "missing a type hint"),
        ("NUMBER", "no plain function"),
    ],
)
def test_a_tool_that_no_model_could_be_told_of_is_refused_with_the_reason(tmp_path: Path, source: str, says: str):
    (tmp_path / "own.py").write_text(
        "NUMBER = 3\n\n\ndef undocumented(text: str):\n    pass\n\n\n"
        'def unhinted(text):\n    """Do.\n\n    Args:\n        text: Any.\n    """\n'
    )
    with pytest.raises(ConfigError, match=says):
        tool_schemas(config_of("environment=tools", f"environment.tools=[{tmp_path}/own.py:{source}]"))


def test_an_interpreter_without_verifiers_is_refused_with_the_command_that_installs_it():
    with pytest.raises(ConfigError, match=r"(?s)has no package verifiers; install it.*venv.*pip install"):
        prompts_to_train(config_of("environment=verifiers", "environment.env=reverse-text", "data.path=null"))


@pytest.mark.parametrize("python", ["no/python", "/usr"])
def test_what_is_no_interpreter_is_refused_by_its_name(python: str):
    words = ("environment=verifiers", "environment.env=reverse-text", "data.path=null", f"environment.python={python}")
    with pytest.raises(ConfigError, match=f"environment.python={python} is no program"):
        prompts_to_train(config_of(*words))


def test_another_interpreter_finds_our_environments_and_none_of_our_packages(tmp_path: Path):
    venv.create(tmp_path / "venv", with_pip=False)
    python = f"environment.python={tmp_path}/venv/bin/python"
    try_environment(config_of("environment=gym", f"environment.env={LAKE}", python), prompt())
    (tmp_path / "own.py").write_text("import pydantic\n")
    with pytest.raises(ConfigError, match="No module named 'pydantic'"):
        try_environment(config_of("environment=gym", f"environment.env={tmp_path}/own.py:Maze", python), prompt())


def test_tools_run_in_the_runs_own_interpreter():
    config = config_of("environment=tools", f"environment.tools=[{CALCULATE}]", "environment.python=no/python")
    assert [schema["function"]["name"] for schema in tool_schemas(config)] == ["calculate"]
