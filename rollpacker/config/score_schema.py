"""Every key of `rollpacker score`."""

from __future__ import annotations

from pathlib import Path

from rollpacker.config.sections.base import Section
from rollpacker.config.sections.data import ScoredDataSection
from rollpacker.config.sections.reward import RewardSection


class ScoreConfig(Section):
    """What `rollpacker score` takes: the reward of given responses, to try it before training."""

    responses: Path
    """A JSONL file; each line has `id` and `response`. An id may come several times."""
    out: Path
    """The JSONL file to write; each line has `id`, `reward` and `reason`, and `parts` where the reward has some."""
    data: ScoredDataSection
    reward: RewardSection = RewardSection()
