"""Causal attention over packed sequences with torch alone, also when each sequence is spread over several ranks.

Megatron-core's own attention without Transformer Engine knows neither packed sequences nor context parallelism. This
module takes its place in the layer specification. Under context parallelism every rank gathers all keys and values of
its group, picks those that each of its chunks may see (see `packing`), and answers for its own queries; the gradient of
the gathered keys is summed back onto their owners. Tensor parallelism needs nothing here: heads are already split.

With half-precision tensors on an accelerator all segments run in one variable-length flash kernel; elsewhere one after
the other through `scaled_dot_product_attention`.

Shapes: L own positions, M keys, A query heads and G key heads of this tensor-parallel rank, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule
from torch.nn.functional import scaled_dot_product_attention

if TYPE_CHECKING:
    from torch import Tensor

    from rollpacker.trainers.megatron.packing import PackedSequences, Segment


class PackedAttention(MegatronModule):  # type: ignore[misc]  # megatron is untyped
    """Fits Megatron-core's `CoreAttention`: built by its layer specification, called by its `SelfAttention`."""

    def __init__(self, config: Any, layer_number: int, pg_collection: Any, **_: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self._context_group = pg_collection.cp

    def forward(
        self,
        query_LAD: Tensor,
        key_LGD: Tensor,
        value_LGD: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002  # the segments are the mask
        /,
        *,
        packed_seq_params: PackedSequences,
        **_: Any,
    ) -> Tensor:
        """Return what every position attends to, [L, A * D]."""
        if packed_seq_params.key_ids_M is None:
            key_MGD, value_MGD = key_LGD, value_LGD
        else:
            # Megatron-core's name for it: gather along the first dimension, reduce-scatter the gradient.
            both_M2GD = gather_from_sequence_parallel_region(
                torch.stack((key_LGD, value_LGD), dim=1), group=self._context_group
            ).index_select(0, packed_seq_params.key_ids_M)
            key_MGD, value_MGD = both_M2GD.unbind(1)
        if query_LAD.is_cuda and query_LAD.dtype in {torch.float16, torch.bfloat16}:
            output_LAD = _flash(query_LAD, key_MGD, value_MGD, packed_seq_params)
        else:
            output_LAD = _one_by_one(query_LAD, key_MGD, value_MGD, packed_seq_params.segments)
        return output_LAD.flatten(1)


def _flash(query_LAD: Tensor, key_MGD: Tensor, value_MGD: Tensor, sequences: PackedSequences) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    output = varlen_attn(
        query_LAD,
        key_MGD.contiguous(),
        value_MGD.contiguous(),
        sequences.cu_queries,
        sequences.cu_keys,
        max(segment.num_queries for segment in sequences.segments),
        max(segment.num_keys for segment in sequences.segments),
        window_size=(-1, 0),  # causal, aligned to the last query and the last key
        enable_gqa=query_LAD.shape[1] != key_MGD.shape[1],
    )
    assert isinstance(output, torch.Tensor), "nothing beside the output was asked for"
    return output


def _one_by_one(query_LAD: Tensor, key_MGD: Tensor, value_MGD: Tensor, segments: tuple[Segment, ...]) -> Tensor:
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
