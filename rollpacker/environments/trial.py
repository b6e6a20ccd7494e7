"""Tries the user's environment on a first prompt: a mistake in it is known before anything starts."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import ConfigError, EngineFailed
from rollpacker.environments.starting import starter_of
from rollpacker.protocols.environment import EnvironmentReset

if TYPE_CHECKING:
    from rollpacker.config.schema import RunConfig
    from rollpacker.processes.server_process import ServerProcess
    from rollpacker.protocols.environment import Observation
    from rollpacker.protocols.rollout import Prompt

_ALLOWED = {
    "gym": "environment.env names a class FILE.py:NAME or PACKAGE.MODULE:NAME with reset and step, which takes "
    "environment.arguments.",
    "tools": "environment.tools names functions FILE.py:NAME or PACKAGE.MODULE:NAME, whose type hints and Google "
    "docstring say what each does and, under `Args:`, what each parameter is.",
    "verifiers": "environment.env names a taskset whose package is installed where environment.python is, and "
    "environment.arguments has its settings, as vf-eval takes them.",
    "loop": "environment.loop names a class FILE.py:NAME or PACKAGE.MODULE:NAME with `async def run(self, "
    "sampling_params, **kwargs)`, which takes environment.arguments.",
}


LOAD_LIMIT_S = 600.0
"""For an environment to download and load its data set."""

_TURN = "0"
"""Of the step that is tried: an action of most environments whose actions are numbers."""


def try_environment(config: RunConfig, prompt: Prompt) -> tuple[str, ...]:
    """Make one in a process of its own and reset it, as often as a trajectory may begin; one of gym takes a step.

    Returns:
        A note if the step raises, crashes or takes too long, which may be because of the turn, which no model wrote.

    Raises:
        ConfigError: It cannot be made, no reset gives an observation, or the step returns something else than a step.
    """
    with closing(_started(config)) as process:
        _reset(config, process, prompt)
        return _try_step(config, process)


def first_observation(config: RunConfig, prompt: Prompt) -> Observation:
    """What an environment says before the first turn.

    Raises:
        ConfigError: As `try_environment`.
    """
    with closing(_started(config)) as process:
        observation: Observation = _reset(config, process, prompt)["observation"]
    return observation


def _reset(config: RunConfig, process: ServerProcess, prompt: Prompt) -> dict[str, Any]:
    section = config.environment
    assert section is not None
    line = json.dumps({"reset": dataclasses.asdict(_as_in_a_run(config, prompt))})
    problem, or_longer = "its process died", ""
    for _ in range(section.max_restarts + 1):
        try:
            answer: dict[str, Any] = process.ask(line, section.reset_timeout_s)
        except EngineFailed as error:
            if isinstance(error.__cause__, TimeoutError):
                problem = f"there was none after {section.reset_timeout_s:g} s"
                or_longer = ", or raise environment.reset_timeout_s"
            process.restart()
            if process.start_failure():
                break
            continue
        if "failure" not in answer:
            return answer
        problem, or_longer = str(answer["failure"]), ""
    raise ConfigError(
        f"environment={section.name}: on the first prompt, {prompt.key!r}, the reset gave no observation: {problem}.",
        "A reset returns an observation, a text, and a dict; a loop begins with a call of `generate`. Both get the "
        "other fields of the prompt's line.",
        f"Correct the environment, or the prompt's line{or_longer}.",
    )


def _as_in_a_run(config: RunConfig, prompt: Prompt) -> EnvironmentReset:
    """With what a trajectory of training begins, but for the prompt's tokens, which a loop then makes itself."""
    return EnvironmentReset(
        seed=0,
        options=dict(prompt.options),
        messages=prompt.messages,
        text=prompt.text,
        max_tokens=config.rollout.max_response_tokens,
        sampling_params={"temperature": config.rollout.temperature, "top_p": 1.0, "top_k": 0},
    )


def _try_step(config: RunConfig, process: ServerProcess) -> tuple[str, ...]:
    section = config.environment
    assert section is not None
    if section.name != "gym":
        return ()
    try:
        answer = process.ask(json.dumps({"step": {"text": _TURN}}), section.turn_timeout_s)
    except EngineFailed:
        limit = f"environment.turn_timeout_s={section.turn_timeout_s:g}"
        answer = {"failure": f"its process died, or took longer than {limit}"}
    if "failure" not in answer:
        return ()
    if answer.get("is_unfit"):
        raise _unusable(config, answer["failure"])
    note = f"environment.env={section.env}: a step on the turn {_TURN!r}, which no model wrote, failed"
    return (f"{note}: {answer['failure']}. Correct the class if other turns fail, too.",)


def tool_schemas(config: RunConfig) -> list[dict[str, Any]]:
    """What the chat template tells a model of its tools, as JSON schemas; one per tool, in their order.

    Raises:
        ConfigError: One is no function, or lacks type hints or a docstring.
    """
    section = config.environment
    assert section is not None
    return _asked(config, "tool_schemas", True, section.reset_timeout_s)


def prompt_rows(config: RunConfig) -> list[dict[str, Any]]:
    """The rows of the prompts that an environment has, as of a prompt file.

    They are as many as `data.max_prompts`, or all where `data.solve_rates` leaves out some before these are counted.

    Raises:
        ConfigError: It has none, or they cannot be loaded.
    """
    data = config.data
    limits = {"most": None if data.solve_rates else data.max_prompts, "most_of_endless": data.max_prompts}
    return _asked(config, "prompts", limits, LOAD_LIMIT_S)


def _asked(config: RunConfig, what: str, of: object, limit_s: float) -> list[dict[str, Any]]:
    with closing(_started(config)) as process:
        try:
            answer = process.ask(json.dumps({what: of}), limit_s)
        except EngineFailed as error:
            answer = {"failure": str(error)}
    if "failure" in answer:
        raise _unusable(config, answer["failure"])
    given: list[dict[str, Any]] = answer[what]
    return given


def _started(config: RunConfig) -> ServerProcess:
    python = config.environment.interpreter if config.environment else None
    if python is not None and not (Path(python).is_file() and os.access(python, os.X_OK)):
        raise ConfigError(
            f"environment.python={python} is no program that can be run.",
            "It is the Python of an environment that has what this one needs, such as DIR/bin/python.",
            "Correct it.",
        )
    process = starter_of(config).start()
    if failure := process.start_failure():
        process.close()
        raise _unusable(config, failure)
    return process


def _unusable(config: RunConfig, failure: str) -> ConfigError:
    section = config.environment
    assert section is not None
    named = section.env or section.loop or ", ".join(section.tools)
    return ConfigError(
        f"{named} cannot be used as environment={section.name}: {failure}.",
        _ALLOWED[section.name],
        "Correct the name, the code or the arguments.",
    )
