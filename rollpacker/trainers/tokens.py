"""What a policy loss may read.

Shapes: N response tokens of B responses, one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tokens:
    """What a loss may read of a micro-batch."""

    current_N: Tensor
    """Log-probabilities, with gradient; below without."""
    proximal_N: Tensor
    behaviour_N: Tensor
    advantages_N: Tensor
    num_tokens_B: Sequence[int]
    """Of each response; they add up to N."""
