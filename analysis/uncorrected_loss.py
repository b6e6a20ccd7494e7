"""The loss that `flash_losses` warns of: PPO that does not read what sampled a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def uncorrected_ppo(current: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:  # noqa: ARG001
    """PPO anchored at the policy before the step's one update: its ratio is 1, whoever sampled the token.

    `behaviour` is a parameter because a loss without it is refused for stale tokens, and for good reason.
    """
    return -(current - current.detach()).exp() * advantages
