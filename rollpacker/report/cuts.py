"""What cut a response, in words: `finish_reason` is `length` whether it was the limit of tokens or its environment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from rollpacker.runtime.run.environment_failures import is_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_LIMIT: Final = "cut at the limit"
BY_ENVIRONMENT: Final = "ended by the environment"
AT_MAX_TURNS: Final = "ended at environment.max_turns"
FAILED: Final = "its environment failed"

CUT_COLUMNS: Final = ("finish_reason", "reward_reason", "length_tokens", "num_turns")
"""Of `responses`, what it is told from."""


class Cuts:
    """Tells of the responses of a run what cut them.

    Args:
        config: The run's record; empty where it is not known.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        reward, environment, rollout = (config.get(key) or {} for key in ("reward", "environment", "rollout"))
        self._is_reason_of_environment = reward.get("name") == "environment"
        self._max_turns = environment.get("max_turns") or math.inf
        self._max_tokens = rollout.get("max_response_tokens") or math.inf

    def of(self, row: Mapping[Any, Any]) -> str:
        """Say what cut the response of a row, which has `CUT_COLUMNS`; empty where nothing did."""
        if row["finish_reason"] != "length":
            return ""
        reason = str(row["reward_reason"])
        if is_failure(reason):
            return FAILED
        if self._is_reason_of_environment and reason == "truncated":
            return BY_ENVIRONMENT
        has_all_turns = row["num_turns"] >= self._max_turns and row["length_tokens"] < self._max_tokens
        return AT_MAX_TURNS if has_all_turns else AT_LIMIT
