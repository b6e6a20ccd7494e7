"""Where each tensor lies in the buckets that travel: pure arithmetic, the same on both ends.

Invariants: pieces follow each other in the order of the tensors; a tensor lies whole in one bucket unless it is larger
than a bucket, in which case it begins in a fresh one and fills as many as it needs. Each piece begins at a multiple of
`ALIGNMENT` in its bucket, and of `PIECE_BYTES` in its tensor, so that both ends can view it as any number type and add
it to a checksum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from rollpacker.protocols.tensors import PIECE_BYTES

ALIGNMENT = 16
"""Bytes; what vectorised copies like, and a multiple of every number type's size."""

_ITEM_BYTES = {
    **dict.fromkeys(("float64", "int64", "uint64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "int8", "uint8", "bool"), 1),
}
"""Of every number type that weights have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """A whole tensor, as its engine knows it."""

    name: str
    dtype: str
    """torch's name of it, such as `bfloat16`."""
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * _ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A tensor, or a part of a large one, in a bucket. All numbers are bytes."""

    tensor: TensorSpec
    begin: int
    """Within the tensor."""
    offset: int
    """Within the bucket."""
    num_bytes: int


class BucketPlan:
    """Places tensors one behind the other, as they come."""

    def __init__(self, bucket_bytes: int) -> None:
        """Fill buckets of a size that is a multiple of `PIECE_BYTES`."""
        assert bucket_bytes > 0
        assert bucket_bytes % PIECE_BYTES == 0
        self._bucket_bytes = bucket_bytes
        self._bucket = 0
        self._used = 0

    def place(self, tensor: TensorSpec) -> Iterator[tuple[int, Piece]]:
        """Yield the pieces of the next tensor, each with the number of its bucket."""
        num_bytes = tensor.num_bytes
        if self._used + num_bytes > self._bucket_bytes:
            self._next_bucket()
        begin = 0
        while True:
            piece_bytes = min(num_bytes - begin, self._bucket_bytes - self._used)
            yield self._bucket, Piece(tensor=tensor, begin=begin, offset=self._used, num_bytes=piece_bytes)
            self._used = -(-(self._used + piece_bytes) // ALIGNMENT) * ALIGNMENT
            begin += piece_bytes
            if begin == num_bytes:
                return
            self._next_bucket()

    def _next_bucket(self) -> None:
        if self._used:
            self._bucket += 1
            self._used = 0
