"""Shares samples among data-parallel replicas.

Invariant: the shares are a function of the lengths in their order. So all ranks, which get the same groups, agree on
them without a word, and a repeated run shares alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Balance:
    """Gives each sample to the replica that has got the fewest tokens so far.

    The loads carry over from call to call: many small calls are as balanced as one large one. While all replicas take
    part, they differ by no more than the longest sample.
    """

    def __init__(self, num_replicas: int) -> None:
        self._loads_tokens = [0] * num_replicas

    def assign(self, lengths_tokens: Sequence[int], replicas: Sequence[int]) -> list[int]:
        """Return the replica of each sample, one of `replicas`; the longest samples choose first."""
        chosen = [replicas[0]] * len(lengths_tokens)
        for index in sorted(range(len(lengths_tokens)), key=lambda index: (-lengths_tokens[index], index)):
            chosen[index] = min(replicas, key=lambda replica: (self._loads_tokens[replica], replica))
            self._loads_tokens[chosen[index]] += lengths_tokens[index]
        return chosen
