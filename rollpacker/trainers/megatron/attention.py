"""Causal attention over packed sequences with torch alone, also when each sequence is spread over several ranks.

Megatron-core's own attention without Transformer Engine knows neither packed sequences nor context parallelism. This
module takes its place in the layer specification. Where the sequences of a micro-batch are split, every rank gathers
all keys and values of its context-parallel group, picks those that each of its chunks may see (see `packing`), and
answers for its own queries; the gradient of the gathered keys is summed back onto their owners. Whether they are split
travels with the micro-batch, and so do positions: Megatron-core's rotary embedding would cut every sequence among the
whole group. Tensor parallelism needs nothing here: heads are already split.

With half-precision tensors on an accelerator all segments run in one variable-length flash kernel; elsewhere one after
the other (`rollpacker.trainers.packed_attention`).

Shapes: L own positions, M keys, A query heads and G key heads of this tensor-parallel rank, D width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from megatron.core.tensor_parallel.mappings import gather_from_sequence_parallel_region
from megatron.core.transformer.module import MegatronModule

from rollpacker.trainers.packed_attention import attend_in_one_kernel, attend_one_by_one, has_kernel_for
from rollpacker.trainers.process_group import own_device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollpacker.trainers.megatron.packing import PackedSequences


class PackedAttention(MegatronModule):  # type: ignore[misc]  # megatron is untyped
    """Fits Megatron-core's `CoreAttention`: built by its layer specification, called by its `SelfAttention`."""

    def __init__(
        self, config: Any, layer_number: int, pg_collection: Any, rotary_frequencies: Sequence[float], **_: Any
    ) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self._context_group = pg_collection.cp
        self._frequencies = torch.tensor(rotary_frequencies, device=own_device())

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
        query_LAD, key_LGD = self._at(packed_seq_params.positions_L, query_LAD, key_LGD)
        if packed_seq_params.key_ids_M is None:
            key_MGD, value_MGD = key_LGD, value_LGD
        else:
            # Megatron-core's name for it: gather along the first dimension, reduce-scatter the gradient.
            both_M2GD = gather_from_sequence_parallel_region(
                torch.stack((key_LGD, value_LGD), dim=1), group=self._context_group
            ).index_select(0, packed_seq_params.key_ids_M)
            key_MGD, value_MGD = both_M2GD.unbind(1)
        segments = packed_seq_params.segments
        if has_kernel_for(query_LAD):
            output_LAD = attend_in_one_kernel(
                query_LAD,
                key_MGD,
                value_MGD,
                segments,
                cu_queries=packed_seq_params.cu_queries,
                cu_keys=packed_seq_params.cu_keys,
            )
        else:
            output_LAD = attend_one_by_one(query_LAD, key_MGD, value_MGD, segments)
        return output_LAD.flatten(1)

    def _at(self, positions_L: Tensor, *states: Tensor) -> list[Tensor]:
        """Turn the pairs of each head, dimension d with d + D / 2, by position times frequency (RoFormer)."""
        angles_L1D = torch.outer(positions_L, self._frequencies).repeat(1, 2).unsqueeze(1)
        turned = []
        for state_LHD in states:
            cos_L1D, sin_L1D = angles_L1D.cos().to(state_LHD.dtype), angles_L1D.sin().to(state_LHD.dtype)
            first, second = state_LHD.chunk(2, dim=-1)
            turned.append(state_LHD * cos_L1D + torch.cat((-second, first), dim=-1) * sin_L1D)
        return turned
