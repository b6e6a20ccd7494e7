"""The cache by itself: how many columns a step attends to, and how much memory a long life takes."""

from __future__ import annotations

import numpy as np
import torch
from transformers import Cache, DynamicCache

from rollpacker.engines.torch.cache import RowCache


def prompt(*lengths: int) -> Cache:
    """One layer, one head of size one: the key of a token is 100 times its row plus its position."""
    longest = max(lengths)
    keys = torch.zeros(len(lengths), 1, longest, 1)
    for row, length in enumerate(lengths):
        keys[row, 0, longest - length :, 0] = 100.0 * row + torch.arange(length)
    cache = DynamicCache()
    cache.update(keys, -keys, 0)
    return cache


def extend(cache: RowCache, keys: list[float]) -> torch.Tensor:
    """Write one token per row; returns all keys that a step attends to, by row and column."""
    cache.reserve_column()
    states = torch.tensor(keys)[:, None, None, None]
    seen, _ = cache.update(states, -states, 0)
    cache.advance()
    return seen[:, 0, :, 0]


def test_rows_end_in_the_same_column_and_keep_their_own_positions() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(3, 1), [0, 1], [3, 1])
    mask = cache.attention_mask()
    assert mask is not None
    assert mask.tolist() == [[True, True, True, True], [False, False, True, True]]
    assert cache.position_ids().tolist() == [[3], [1]]
    assert extend(cache, [3, 101]).tolist() == [[0, 1, 2, 3], [0, 0, 100, 101]]
    assert cache.num_tokens == 6


def test_rows_of_equal_length_need_no_mask() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(3), [0, 0], [3, 3])
    assert cache.attention_mask() is None
    assert extend(cache, [3, 3]).tolist() == [[0, 1, 2, 3]] * 2


def test_a_step_attends_to_no_column_that_no_row_needs() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(50, 3, 2), [0, 1, 2], [50, 3, 2])
    assert extend(cache, [50, 103, 202]).shape == (3, 51)
    to, source = cache.remove(np.array([0]))
    assert (to.tolist(), source.tolist()) == ([0], [2])
    assert extend(cache, [203, 104]).tolist() == [[0, 200, 201, 202, 203], [100, 101, 102, 103, 104]]


def test_memory_does_not_grow_with_time_when_rows_come_and_go() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(3), [0, 0], [3, 3])
    sizes = []
    for _ in range(2000):
        extend(cache, [0.0] * cache.num_rows)
        cache.remove(np.array([0]))
        cache.join(prompt(7), [0], [7])
        sizes.append(cache.layers[0].keys.numel())
    assert max(sizes) <= 4 * (2 * 12 + 64)


def test_release_gives_all_memory_back_and_the_cache_can_be_used_again() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(3), [0], [3])
    cache.remove(np.array([0]))
    cache.release()
    assert not cache.layers
    cache.join(prompt(2), [0], [2])
    assert extend(cache, [2]).tolist() == [[0, 1, 2]]
