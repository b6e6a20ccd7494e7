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
    cache.reserve_columns()
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


def extend_unevenly(cache: RowCache, keys: list[list[float]], nums: list[int]) -> list[list[float]]:
    """Write several tokens per row and keep so many; returns the keys that each row's last one saw."""
    cache.reserve_columns(len(keys[0]))
    mask, positions = cache.open_columns(len(keys[0]))
    states = torch.tensor(keys, dtype=torch.float32)[:, None, :, None]
    seen, _ = cache.update(states, -states, 0)
    assert (positions[:, -1] + 1).tolist() == mask[:, 0, -1].sum(-1).tolist()
    cache.keep_columns(np.array(nums))
    return [row[is_seen].tolist() for row, is_seen in zip(seen[:, 0, :, 0], mask[:, 0, -1], strict=True)]


def test_rows_keep_as_many_columns_as_they_like_and_lose_the_others() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(3, 1), [0, 1], [3, 1])
    assert extend_unevenly(cache, [[3, 4, 5], [101, 102, 103]], [3, 1]) == [
        [0, 1, 2, 3, 4, 5],
        [100, 101, 102, 103],
    ]
    assert not cache.is_aligned
    assert cache.num_tokens == 6 + 2
    assert extend_unevenly(cache, [[6, 7], [102, 103]], [1, 2]) == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [100, 101, 102, 103],
    ]
    cache.align()
    assert cache.is_aligned
    mask = cache.attention_mask()
    assert mask is not None
    seen = extend(cache, [7, 104])
    assert [row[held].tolist() for row, held in zip(seen, mask, strict=True)] == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [100, 101, 102, 103, 104],
    ]


def test_rows_of_uneven_ends_may_join_leave_and_outgrow_the_buffers() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(2, 2), [0, 1], [2, 2])
    for at in range(2, 62, 3):
        keys = [[at + 0.0, at + 1, at + 2], [102.0 + (at - 2) // 3, 0, 0]]
        extend_unevenly(cache, keys, [3, 1])
    cache.join(prompt(1, 4), [1], [4])
    assert extend_unevenly(cache, [[62.0], [122.0], [104.0]], [1, 1, 1]) == [
        [float(token) for token in range(63)],
        [float(token) for token in range(100, 123)],
        [100.0, 101, 102, 103, 104],
    ]
    cache.remove(np.array([0]))
    extend_unevenly(cache, [[105.0], [123.0]], [1, 1])
    cache.align()
    assert cache.num_tokens == 6 + 24
    assert extend(cache, [106.0, 124.0])[:, -24:].tolist()[1] == [float(token) for token in range(101, 125)]


def test_rows_that_lag_far_behind_are_moved_before_a_pass_covers_many_empty_columns() -> None:
    cache = RowCache(4, torch.device("cpu"))
    cache.join(prompt(2, 2), [0, 1], [2, 2])
    for _ in range(60):
        extend_unevenly(cache, [[0.0] * 4] * 2, [4, 1])
    cache.remove(np.array([0]))
    for _ in range(30):
        cache.join(prompt(1), [0], [1])
        for _ in range(10):
            extend_unevenly(cache, [[0.0] * 4] * 2, [1, 4])
        cache.remove(np.array([1]))
    longest = 2 + 60 + 30 * 10
    assert cache.layers[0].keys.shape[2] <= 2 * (2 * longest + 64) + 64


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
