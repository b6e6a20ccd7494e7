"""WALK, a step per turn: the demo's task as an environment.

The prompt's line has start and target in `ground_truth`, such as `3 20`. A turn is a step and the number it leads to,
such as `+4 7`; the environment answers with the walk that is left, `7 20 :`, as the demo's prompts ask for one. The
last turn's reward is 1 where it leads to the target; a turn that is no such pair, or a wrong sum, or beyond the target
ends the walk with 0.
"""

from __future__ import annotations

from typing import Any

from rollpacker.rewards.walk import STEPS, read_task


class WalkTurns:
    """One walk."""

    def reset(self, *, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin; the prompt says all there is to say."""
        text = str((options or {}).get("ground_truth", ""))
        task = read_task(text)
        if task is None:
            raise ValueError(f"ground_truth is {text!r}; a walk has start and target, as in `3 20`")
        self._place, self._target = task
        return "", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a step and a number."""
        match action.split():
            case [step, number] if step in STEPS and number == str(self._place + STEPS[step]):
                self._place += STEPS[step]
            case _:
                return "", 0.0, True, False, {}
        is_there = self._place == self._target
        left = f"{self._place} {self._target} :"
        return left, float(is_there), self._place >= self._target, False, {}
