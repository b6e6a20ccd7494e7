"""Every key of `rollpacker score`."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from rollpacker.config.sections.base import Section
from rollpacker.config.sections.data import ScoredDataSection
from rollpacker.config.sections.reward import RewardSection


class ScoreConfig(Section):
    """What `rollpacker score` takes: the reward of given responses, to try it before training."""

    responses: Path
    """JSON lines, Parquet, Arrow or CSV; each row is {"id": ID, "response": TEXT}, with the `id` of the prompt. An id
    may come several times. Prompts without `id` have made ids; the error of a row that names no prompt shows one."""
    out: Path
    """The JSONL file to write; each line has `id`, `reward` and `reason`, and `parts` where the reward has some."""
    data: ScoredDataSection
    reward: RewardSection = RewardSection()

    @model_validator(mode="after")
    def _scores_no_lengths(self) -> Self:
        for key in ("overlong_buffer_tokens", "overlong_penalty"):
            if getattr(self.reward, key) != RewardSection.model_fields[key].default:
                raise ValueError(
                    f"reward.{key} is set, and `rollpacker score` does not know how many tokens a response has.\n"
                    "It gives the reward before over-long reward shaping.\n"
                    f"Leave out reward.{key}."
                )
        return self
