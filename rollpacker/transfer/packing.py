"""Packs a policy's tensors into buckets as they come, each with the checksum of what was put into it.

A transfer fills two buffers in turn. A policy that is packed ahead has a buffer for each bucket: on a GPU node in
page-locked memory, so that the copy from the GPU runs at the link's speed, and summed up on the GPU; to send it then
costs the sender nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from rollpacker.protocols.tensors import RunningChecksum, dtype_name
from rollpacker.transfer.board import BucketNote
from rollpacker.transfer.buckets import BucketPlan, Piece, TensorSpec
from rollpacker.transfer.memory import Buffer, HostBuffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A full one."""

    buffer: Buffer
    note: BucketNote


def packed(
    tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int, next_buffer: Callable[[], Buffer]
) -> Iterator[Bucket]:
    """Fill buckets, each in the buffer that is given for it.

    A tensor is read before the next one is requested, and a bucket is yielded before the next one is begun.
    """
    plan = BucketPlan(bucket_bytes)
    filling, number = None, 0
    for name, tensor in tensors:
        spec = TensorSpec(name=name, dtype=dtype_name(tensor.dtype), shape=tuple(tensor.shape))
        data = tensor.detach().contiguous().view(-1).view(torch.uint8)
        for bucket, piece in plan.place(spec):
            if filling is not None and bucket != number:
                yield filling.full()
                filling = None
            if filling is None:
                filling, number = _Filling(buffer=next_buffer()), bucket
            filling.add(piece, data)
    if filling is not None:
        yield filling.full()


@dataclass(slots=True, kw_only=True)
class _Filling:
    buffer: Buffer
    pieces: list[Piece] = field(default_factory=list)
    checksum: RunningChecksum = field(default_factory=RunningChecksum)

    def add(self, piece: Piece, tensor: torch.Tensor) -> None:
        data = tensor[piece.begin : piece.begin + piece.num_bytes]
        spec = piece.tensor
        self.checksum.add_piece(spec.name, spec.dtype, spec.shape, piece.begin, data)
        self.buffer.data[piece.offset : piece.offset + piece.num_bytes].copy_(data, non_blocking=True)
        self.pieces.append(piece)

    def full(self) -> Bucket:
        last = self.pieces[-1]
        note = BucketNote(
            pieces=tuple(self.pieces),
            num_bytes=last.offset + last.num_bytes,
            checksum=self.checksum.digest(),  # waits for the device, so that the bucket is complete from here on
        )
        return Bucket(buffer=self.buffer, note=note)


class PackedPolicy:
    """A whole policy in host memory that receivers on this node can open; the memory is used again for the next one."""

    def __init__(self) -> None:
        self._buffers: list[HostBuffer] = []
        self.buckets: Sequence[Bucket] = ()

    def pack(self, tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int) -> None:
        """Take a copy of the tensors, in the place of those before, which nobody reads any more.

        `bucket_bytes` is the same at each call.
        """
        self.buckets = ()
        unused = iter(self._buffers)

        def next_buffer() -> HostBuffer:
            buffer = next(unused, None)
            if buffer is None:
                buffer = HostBuffer(bucket_bytes)
                self._buffers.append(buffer)
            return buffer

        self.buckets = tuple(packed(tensors, bucket_bytes, next_buffer))
