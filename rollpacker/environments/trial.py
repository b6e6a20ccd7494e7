"""Tries the user's environment on a first prompt: a mistake in it is known before anything starts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rollpacker.core.errors import ConfigError, EngineFailed
from rollpacker.environments.pool import PROCESS
from rollpacker.rewards.supervisor_process import SupervisorProcess

if TYPE_CHECKING:
    from rollpacker.config.sections.environment import EnvironmentSection
    from rollpacker.protocols.rollout import Prompt


def try_environment(section: EnvironmentSection, prompt: Prompt) -> None:
    """Make one in a process of its own and reset it, as often as a trajectory may begin.

    Raises:
        ConfigError: It cannot be made, or no reset gives an observation.
    """
    process = SupervisorProcess(PROCESS, [section.env, json.dumps(section.arguments)], role="environment process")
    try:
        if failure := process.start_failure():
            raise ConfigError(
                f"environment.env={section.env} cannot be used: {failure}.",
                "It names a class FILE.py:NAME or PACKAGE.MODULE:NAME with reset and step, which takes "
                "environment.arguments.",
                "Correct the name, the class or the arguments.",
            )
        line = json.dumps({"reset": 0, "options": dict(prompt.options)})
        problem = "its process died or hung"
        for _ in range(section.max_restarts + 1):
            try:
                answer: dict[str, Any] = process.ask(line, section.reset_timeout_s)
            except EngineFailed:
                process.restart()
                if process.start_failure():
                    break
                continue
            if "failure" not in answer:
                return
            problem = str(answer["failure"])
        raise ConfigError(
            f"environment.env={section.env}: on the first prompt, {prompt.key!r}, the reset gave no observation: "
            f"{problem}.",
            "reset returns an observation, a text, and a dict; `options` has the other fields of the prompt's line.",
            "Correct the class, or raise environment.reset_timeout_s.",
        )
    finally:
        process.close()
