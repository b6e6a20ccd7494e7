"""Lays a micro-batch out as one row of packed sequences, and cuts it for context parallelism.

Padding is dropped: the sequences of a micro-batch are concatenated, and attention gets the offset of each.
Under context parallelism of C each sequence is filled up to a multiple of 2C and cut into 2C equal chunks; rank r holds
chunks r and 2C - 1 - r of every sequence. So each rank has as much causal attention to compute as any other.

Invariant: every response token is scored by exactly one context-parallel rank. What fills a sequence up stands at its
end, where no real token looks.

Everything is computed on the host from lengths that are known there, so that nothing waits for the accelerator.

Shapes: L positions of this rank, N response tokens of the micro-batch, n <= N those that this rank scores, M keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from megatron.core.packed_seq_params import PackedSeqParams

from rollpacker.trainers.packed_attention import Segment

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from rollpacker.trainers.microbatches import MicroBatch


@dataclass(kw_only=True)
class PackedSequences(PackedSeqParams):  # type: ignore[misc]  # megatron is untyped
    """What travels to every layer: Megatron-core's own field for the layout, ours for attention."""

    positions_L: Tensor
    """Of each query in its sequence, float32."""
    segments: tuple[Segment, ...]
    """In the order of the queries; together all L of them."""
    key_ids_M: Tensor | None
    """For each key of each segment, where it stands in the keys gathered from all context-parallel ranks. None
    without context parallelism, where keys and queries are the same positions."""
    cu_queries: Tensor
    """Where each segment's queries begin, int32, on the accelerator; then their number."""
    cu_keys: Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PackedRows:
    """A micro-batch as one rank's forward pass takes it."""

    token_ids_1L: Tensor
    sequences: PackedSequences
    scored_n: Tensor
    """Which of the L positions predict sampled tokens."""
    tokens_n: Tensor
    """Which of the N sampled tokens they predict."""
    target_ids_n: Tensor


def pack_rows(microbatch: MicroBatch, num_parts: int, part: int) -> PackedRows:
    """Lay out what context-parallel rank `part` of `num_parts` computes."""
    device = microbatch.input_ids_BT.device
    lengths = microbatch.num_inputs_B
    filled = [_fill(length, num_parts) for length in lengths]
    positions = [_own_positions(length, num_parts, part) for length in filled]
    scored, tokens = _scored(microbatch, positions)
    targets_N = microbatch.target_ids_BK[microbatch.is_sampled_BK]
    tokens_n = torch.from_numpy(tokens).to(device)
    return PackedRows(
        token_ids_1L=_token_ids(microbatch, positions),
        sequences=_sequences(filled, positions, num_parts, part, device),
        scored_n=torch.from_numpy(scored).to(device),
        tokens_n=tokens_n,
        target_ids_n=targets_N if num_parts == 1 else targets_N[tokens_n],
    )


def _fill(length: int, num_parts: int) -> int:
    num_chunks = 1 if num_parts == 1 else 2 * num_parts
    return -(-length // num_chunks) * num_chunks


def _own_positions(length: int, num_parts: int, part: int) -> np.ndarray:
    """Which positions of a filled sequence this rank holds, in its order."""
    if num_parts == 1:
        return np.arange(length)
    chunks = np.arange(length).reshape(2 * num_parts, -1)
    return np.concatenate([chunks[part], chunks[2 * num_parts - 1 - part]])


def _token_ids(microbatch: MicroBatch, positions: Sequence[np.ndarray]) -> Tensor:
    num_columns = microbatch.input_ids_BT.shape[1]
    # What fills a sequence up is never looked at: any token will do, so take the row's last column.
    flat = np.concatenate([row * num_columns + np.minimum(own, num_columns - 1) for row, own in enumerate(positions)])
    ids = microbatch.input_ids_BT.reshape(-1)
    return ids[torch.from_numpy(flat).to(ids.device)].unsqueeze(0)


def _scored(microbatch: MicroBatch, positions: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The places among this rank's L positions that predict sampled tokens, and the indices of those tokens."""
    scored, tokens = [], []
    row_start = token_start = 0
    first_scored = microbatch.input_ids_BT.shape[1] - microbatch.num_scored
    for own, is_sampled_K in zip(positions, microbatch.is_sampled_BK.cpu().numpy(), strict=True):
        predicting = first_scored + np.flatnonzero(is_sampled_K)
        token_at = np.full(max(own.max(), predicting.max()) + 1, -1)
        token_at[predicting] = np.arange(len(predicting))
        token = token_at[own]
        is_scored = token >= 0
        scored.append(row_start + np.flatnonzero(is_scored))
        tokens.append(token_start + token[is_scored])
        row_start += len(own)
        token_start += len(predicting)
    return np.concatenate(scored), np.concatenate(tokens)


def _sequences(
    filled: Sequence[int], positions: Sequence[np.ndarray], num_parts: int, part: int, device: torch.device
) -> PackedSequences:
    segments, key_ids = _segments(filled, num_parts, part)
    queries = np.cumsum([0, *(segment.num_queries for segment in segments)]).astype(np.int32)
    keys = np.cumsum([0, *(segment.num_keys for segment in segments)]).astype(np.int32)
    return PackedSequences(
        qkv_format="thd",
        positions_L=torch.from_numpy(np.concatenate(positions).astype(np.float32)).to(device),
        segments=segments,
        key_ids_M=None if key_ids is None else torch.from_numpy(key_ids).to(device),
        cu_queries=torch.from_numpy(queries).to(device),
        cu_keys=torch.from_numpy(keys).to(device),
    )


def _segments(filled: Sequence[int], num_parts: int, part: int) -> tuple[tuple[Segment, ...], np.ndarray | None]:
    """One segment per sequence; under context parallelism one per chunk, with all keys up to the chunk's end."""
    if num_parts == 1:
        return tuple(Segment(num_queries=length, num_keys=length) for length in filled), None
    num_local = sum(filled) // num_parts
    segments, key_ids = [], []
    row_start = 0
    for length in filled:
        size = length // (2 * num_parts)
        chunks, offsets = np.divmod(np.arange(length), size)
        is_late = chunks >= num_parts
        owners = np.where(is_late, 2 * num_parts - 1 - chunks, chunks)
        where = owners * num_local + row_start + is_late * size + offsets
        for chunk in (part, 2 * num_parts - 1 - part):
            num_keys = (chunk + 1) * size
            segments.append(Segment(num_queries=size, num_keys=num_keys))
            key_ids.append(where[:num_keys])
        row_start += 2 * size
    return tuple(segments), np.concatenate(key_ids)
