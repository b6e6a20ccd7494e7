"""Makes what a configuration's environments run in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.data.turns import TurnRenderer
from rollpacker.environments.pool import EnvironmentPool
from rollpacker.protocols.environment import EnvironmentParts

if TYPE_CHECKING:
    from rollpacker.config.sections.environment import EnvironmentSection
    from rollpacker.data.tokenization import PromptTokenizer

GRACE_S = 10.0
"""How much longer than the scheduler's limits a call may take."""


def make_environments(section: EnvironmentSection, tokenizer: PromptTokenizer) -> EnvironmentParts:
    """Make them; processes start as trajectories need them."""
    longest_s = max(section.reset_timeout_s, section.turn_timeout_s)
    return EnvironmentParts(
        service=EnvironmentPool(section.env, section.arguments, limit_s=longest_s + GRACE_S),
        texts=TurnRenderer(tokenizer),
    )
