"""Causal attention over packed sequences with torch alone: in one variable-length flash kernel, or one after the other.

Both give the same to rounding. The kernel takes half-precision tensors on a GPU, and nothing else.

Shapes: L queries, M keys, A query heads, G key heads, D width of a head.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A run of queries with the keys that it sees: causal, and its last query sees the last key."""

    num_queries: int
    num_keys: int


def has_kernel_for(query_LAD: Tensor) -> bool:
    """Whether the flash kernel takes such tensors."""
    return query_LAD.is_cuda and query_LAD.dtype in {torch.float16, torch.bfloat16}


def attend_in_one_kernel(
    query_LAD: Tensor,
    key_MGD: Tensor,
    value_MGD: Tensor,
    segments: tuple[Segment, ...],
    *,
    cu_queries: Tensor,
    cu_keys: Tensor,
) -> Tensor:
    """Return what every query attends to, [L, A, D].

    `cu_queries` and `cu_keys` are where each segment begins, int32, on the GPU; then their number.
    """
    from torch.nn.attention.varlen import varlen_attn

    heads_per_key = query_LAD.shape[1] // key_MGD.shape[1]
    grouped: dict[str, Any] = {}
    if heads_per_key > 1:
        if "enable_gqa" in inspect.signature(varlen_attn).parameters:
            grouped["enable_gqa"] = True
        else:  # torch 2.11
            key_MGD = key_MGD.repeat_interleave(heads_per_key, dim=1)
            value_MGD = value_MGD.repeat_interleave(heads_per_key, dim=1)
    output = varlen_attn(
        query_LAD,
        key_MGD.contiguous(),
        value_MGD.contiguous(),
        cu_queries,
        cu_keys,
        max(segment.num_queries for segment in segments),
        max(segment.num_keys for segment in segments),
        window_size=(-1, 0),  # causal, aligned to the last query and the last key
        **grouped,
    )
    assert isinstance(output, torch.Tensor), "nothing beside the output was asked for"
    return output


def attend_one_by_one(query_LAD: Tensor, key_MGD: Tensor, value_MGD: Tensor, segments: tuple[Segment, ...]) -> Tensor:
    """Return what every query attends to, [L, A, D]."""
    num_queries = [segment.num_queries for segment in segments]
    num_keys = [segment.num_keys for segment in segments]
    outputs = []
    for query, key, value in zip(
        torch.split(query_LAD, num_queries),
        torch.split(key_MGD, num_keys),
        torch.split(value_MGD, num_keys),
        strict=True,
    ):
        is_whole = len(query) == len(key)
        mask = None
        if not is_whole:
            mask = torch.ones(len(query), len(key), dtype=torch.bool, device=query.device)
            mask = mask.tril(len(key) - len(query))
        output_1ALD = scaled_dot_product_attention(
            query.transpose(0, 1).unsqueeze(0),
            key.transpose(0, 1).unsqueeze(0),
            value.transpose(0, 1).unsqueeze(0),
            attn_mask=mask,
            is_causal=is_whole,
            enable_gqa=query.shape[1] != key.shape[1],
        )
        outputs.append(output_1ALD.squeeze(0).transpose(0, 1))
    return torch.cat(outputs)
