"""How packed sequences reach torch's flash kernel, of each version of torch; the kernel itself needs a GPU."""

import pytest
import torch

from rollpacker.trainers.packed_attention import Segment, attend_in_one_kernel, attend_one_by_one, has_kernel_for

SEGMENTS = (Segment(num_queries=3, num_keys=3), Segment(num_queries=2, num_keys=5))
BEGINS = {"cu_queries": torch.tensor([0, 3, 5]), "cu_keys": torch.tensor([0, 3, 8])}


def of_torch_2_11(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size):  # noqa: PLR0917  torch's own order
    """It has no flag for grouped heads, and takes as many of keys as of queries."""
    assert query.shape[1] == key.shape[1]
    return _plain(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size)


def of_torch_2_12(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, window_size, enable_gqa=False):  # noqa: PLR0917  torch's own order
    assert enable_gqa == (query.shape[1] != key.shape[1])
    return _plain(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size)


def _plain(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size):  # noqa: PLR0917  torch's own order
    assert (cu_seq_q.tolist(), cu_seq_k.tolist(), max_q, max_k) == ([0, 3, 5], [0, 3, 8], 3, 5)
    assert window_size == (-1, 0)
    return attend_one_by_one(query, key, value, SEGMENTS)


@pytest.mark.parametrize("kernel", [of_torch_2_11, of_torch_2_12])
@pytest.mark.parametrize("num_key_heads", [1, 2, 4])
def test_grouped_heads_reach_the_kernel_of_each_torch_as_it_takes_them(kernel, num_key_heads, monkeypatch):
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
    query = torch.randn(5, 4, 8)
    key, value = torch.randn(2, 8, num_key_heads, 8)
    output = attend_in_one_kernel(query, key, value, SEGMENTS, **BEGINS)
    torch.testing.assert_close(output, attend_one_by_one(query, key, value, SEGMENTS))
    assert not has_kernel_for(query)
