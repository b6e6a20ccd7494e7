"""Lets environments of gymnasium that speak in numbers be played in texts, as they are.

Where `render_mode` is `ansi`, an observation that is no text is what `render()` shows: what has a coloured background,
often the player, is in [brackets], and other coloured text in <brackets>. Where actions are numbers, a Discrete space,
the last whole number of a turn is the action. A turn without one does nothing, and is answered by what they are.
"""

from __future__ import annotations

import re
from typing import Any

from rollpacker.environments.known_parameters import taking_known

_COLOURED = re.compile(r"\x1b\[([\d;]*)m(.*?)\x1b\[0?m", re.DOTALL)
_BACKGROUND = re.compile(r"(?:4|10)[0-7]")
"""Codes of SGR, see console_codes(4)."""
_WHOLE_NUMBER = re.compile(r"((?:(?<!\w)-)?(?<!\d)(?<!\d\.)\d{1,18})(?:\.0+)?(?!\.?\d)")
"""No part of a longer one: 1.0 is 1, 1.5 is none, and 1-2 ends with 2. Python refuses to read one of thousands of
digits."""

Step = tuple[Any, Any, Any, Any, Any]


def is_played_in_numbers(env: object) -> bool:
    """Tell whether an environment shows itself by `render()` alone, or has actions that are numbers."""
    return getattr(env, "render_mode", None) == "ansi" or _actions_of(env) is not None


class InTexts:
    """An environment of gymnasium, whose actions and observations are texts."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._reset = taking_known(env.reset)
        self._actions = _actions_of(env)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        observation, info = self._reset(seed=seed, options=options)
        return self._in_text(observation), info

    def step(self, action: str) -> Step:
        """Take an action, or say which there are."""
        if self._actions is None:
            return self._taken(action)
        number = _last_number(action)
        if number in self._actions:
            return self._taken(number)
        return f"No action. Write one number, {self._actions[0]} to {self._actions[-1]}.", 0.0, False, False, {}

    def close(self) -> None:
        """Let go of what it holds, if it has such a method."""
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _taken(self, action: Any) -> Step:
        observation, reward, terminated, truncated, info = self._env.step(action)
        return self._in_text(observation), reward, terminated, truncated, info

    def _in_text(self, observation: Any) -> Any:
        if isinstance(observation, str) or getattr(self._env, "render_mode", None) != "ansi":
            return observation
        return _without_colours(str(self._env.render()))


def _actions_of(env: object) -> range | None:
    """The numbers of a Discrete space of actions; other spaces with `n` have no `start`."""
    space: Any = getattr(env, "action_space", None)
    if not (hasattr(space, "n") and hasattr(space, "start")):
        return None
    first = int(space.start)
    return range(first, first + int(space.n))


def _last_number(text: str) -> int | None:
    numbers = _WHOLE_NUMBER.findall(text)
    return int(numbers[-1]) if numbers else None


def _without_colours(text: str) -> str:
    def bracketed(match: re.Match[str]) -> str:
        codes, inner = match.groups()
        is_background = any(map(_BACKGROUND.fullmatch, codes.split(";")))
        return f"[{inner}]" if is_background else f"<{inner}>"

    return _COLOURED.sub(bracketed, text)
