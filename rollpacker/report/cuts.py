"""What cut a response: `finish_reason` is `length` whether it was the limit of tokens or its environment."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rollpacker.metrics.tables import read_table
from rollpacker.protocols.rollout import FinishReason
from rollpacker.runtime.run.failures import ENVIRONMENT_FAILURES

if TYPE_CHECKING:
    from collections.abc import Mapping

AT_LIMIT: Final = "cut at the limit"
BY_ENVIRONMENT: Final = "ended by the environment"
AT_MAX_TURNS: Final = "ended at environment.max_turns"
FAILED: Final = "its environment failed"

CUT_COLUMNS: Final = ("finish_reason", "reward_reason", "length_tokens", "num_turns")
"""Of `responses`, what it is told from."""

FAILED_END: Final = "failed"
"""Beside finish reasons: that of a held-out response whose environment failed."""


def held_out_ends(run_dir: Path) -> Counter[tuple[int, str, str]]:
    """Count how held-out responses ended: by step, set, and finish reason or `FAILED_END`."""
    columns = ["step", "set", "finish_reason", "reward_reason"]
    rows = read_table(run_dir, "evaluation_responses").select(columns).to_pydict()
    return Counter(
        (step, name, FAILED_END if end == FinishReason.LENGTH and reason in ENVIRONMENT_FAILURES else end)
        for step, name, end, reason in zip(*rows.values(), strict=True)
    )


class Cuts:
    """Tells of the responses of a run what cut them.

    Args:
        config: The run's record; empty where it is not known.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        sections = ("reward", "environment", "rollout", "evaluation")
        reward, environment, rollout, evaluation = (config.get(key) or {} for key in sections)
        self._is_reason_of_environment = reward.get("name") == "environment"
        self._max_turns = environment.get("max_turns") or math.inf
        self._max_tokens = rollout.get("max_response_tokens") or math.inf
        self._max_held_out_tokens = evaluation.get("max_response_tokens") or self._max_tokens
        self._max_tokens_by_set = {
            file.get("name") or Path(file["path"]).stem: file["max_response_tokens"]
            for file in evaluation.get("path") or ()
            if isinstance(file, dict) and file.get("max_response_tokens")
        }

    def of(self, row: Mapping[Any, Any], held_out_set: str | None = None) -> str:
        """Say what cut a response; empty where nothing did.

        Args:
            row: Has `CUT_COLUMNS`.
            held_out_set: The set that its prompt is of; None for a response of training.
        """
        if row["finish_reason"] != FinishReason.LENGTH:
            return ""
        reason = str(row["reward_reason"])
        if reason in ENVIRONMENT_FAILURES:
            return FAILED
        if self._is_reason_of_environment and reason == "truncated":
            return BY_ENVIRONMENT
        max_tokens = self._max_tokens
        if held_out_set is not None:
            max_tokens = self._max_tokens_by_set.get(held_out_set, self._max_held_out_tokens)
        has_all_turns = row["num_turns"] >= self._max_turns and row["length_tokens"] < max_tokens
        return AT_MAX_TURNS if has_all_turns else AT_LIMIT
