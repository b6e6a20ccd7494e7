"""Which rewards exist, and how each must be run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.core.errors import ConfigError
from rollpacker.rewards.worker import InPlaceRewardWorker, KillableRewardWorker

if TYPE_CHECKING:
    from rollpacker.config.schema import RewardSection
    from rollpacker.protocols.reward import RewardWorker


def make_reward_worker(section: RewardSection) -> RewardWorker:
    """Make the worker of the configured reward. It belongs to the event loop that first calls it.

    Raises:
        ConfigError: The reward judges no texts.
    """
    match section.name:
        case "walk":
            from rollpacker.rewards import walk

            return InPlaceRewardWorker(walk)
        case "math":
            return KillableRewardWorker("rollpacker.rewards.math", section.num_workers, section.timeout_s)
        case "modelled":
            raise ConfigError(
                "reward.name=modelled judges no texts.", "Texts are judged by math or walk.", "Choose reward=math."
            )
