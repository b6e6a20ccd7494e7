from __future__ import annotations

from typing import Any

import pytest

from rollpacker.config.sections.environment import EnvironmentSection
from rollpacker.core.errors import ConfigError
from rollpacker.core.ids import Domain
from rollpacker.environments.trial import try_environment
from rollpacker.protocols.references import AnswerReference
from rollpacker.protocols.rollout import Prompt

WALK = "rollpacker.environments.walk_turns:WalkTurns"
DELAYED = "rollpacker.environments.delayed:Delayed"


def try_it(env: str, arguments: dict[str, Any], answer: str = "3 20") -> None:
    prompt = Prompt(key="p", domain=Domain("walk"), messages=(), text="3 20 :", reference=AnswerReference(text=answer))
    try_environment(EnvironmentSection(name="gym", env=env, arguments=arguments, max_restarts=1), prompt)


def test_an_environment_that_can_be_reset_is_fine():
    try_it(WALK, {})


@pytest.mark.parametrize(
    ("env", "arguments", "says"),
    [
        ("rollpacker.environments.walk_turns:WalkTurn", {}, "it has `WalkTurns`"),
        ("rollpacker.environments.walk_turn:WalkTurns", {}, "No module named"),
        (WALK, {"speed": 3}, "takes no arguments"),
        ("rollpacker.environments.calculator:compute", {}, "missing 1 required positional"),
        ("rollpacker.environments.walk_turns:STEPS", {}, "which makes no environment"),
        (DELAYED, {"env": WALK, "p_crash_at_reset": 1.0}, "its process died"),
    ],
)
def test_one_that_cannot_be_made_or_reset_is_refused_with_the_reason(env: str, arguments: dict[str, Any], says: str):
    with pytest.raises(ConfigError, match=says):
        try_it(env, arguments)


def test_a_prompt_that_it_does_not_take_is_named():
    with pytest.raises(ConfigError, match=r"the first prompt, 'p'.*start and target"):
        try_it(WALK, {}, answer="no walk")
