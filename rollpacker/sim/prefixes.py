"""What turns that ended leave in a modelled engine's KV cache, for the next turns of their trajectories.

The whole blocks of an ended turn are free, and hold their tokens until running sequences take them: after all free
blocks that hold nothing, the turn that ended longest ago first, and of a turn its last tokens first. So what is left of
a turn is a beginning of its trajectory, and the next turn computes what comes behind it. A trajectory's last turn is
kept as well: an engine does not know that none follows.

Invariant: a block that is cached is free, so there are never more of them than free blocks.

Source: vLLM 0.32, `v1/core/block_pool.py`. There any request finds any beginning; here a trajectory finds its own.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from rollpacker.sim.costs import KV_BLOCK_TOKENS

if TYPE_CHECKING:
    from rollpacker.core.ids import RequestId


class Prefixes:
    """The cached blocks of one engine; without `is_on` there are none."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._blocks: OrderedDict[RequestId, int] = OrderedDict()
        """What is left of each turn; the one that ended longest ago comes first."""
        self.num_blocks = 0
        self.num_query_tokens = 0
        """Total of what admitted sequences had."""
        self.num_hit_tokens = 0
        """Of these, the ones that were cached."""

    def keep(self, request: RequestId, num_tokens: int) -> None:
        """Remember a turn that has ended, and whose blocks are becoming free."""
        if not self._is_on:
            return
        self._blocks[request] = num_tokens // KV_BLOCK_TOKENS
        self.num_blocks += self._blocks[request]

    def take(self, request: RequestId, num_tokens: int) -> int:
        """Give how many of a sequence's first tokens are cached: never its last one, from which the next is sampled.

        They are its own from now on, and whatever else was cached of it is lost.
        """
        if not self._is_on:
            return 0
        num_blocks = self._blocks.pop(request, 0)
        self.num_blocks -= num_blocks
        num_hit = min(num_blocks, (num_tokens - 1) // KV_BLOCK_TOKENS) * KV_BLOCK_TOKENS
        self.num_query_tokens += num_tokens
        self.num_hit_tokens += num_hit
        return num_hit

    def evict(self, num_free_blocks: int) -> None:
        """Lose what does not fit into the blocks that are still free."""
        while self.num_blocks > num_free_blocks:
            request, num_blocks = self._blocks.popitem(last=False)
            num_left = max(0, num_blocks - (self.num_blocks - num_free_blocks))
            if num_left:
                self._blocks[request] = num_left
                self._blocks.move_to_end(request, last=False)
            self.num_blocks -= num_blocks - num_left

    def forget(self) -> None:
        """Lose everything."""
        self._blocks.clear()
        self.num_blocks = 0
