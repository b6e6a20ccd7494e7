"""Tensors out of the buckets that they came in.

torch is imported when a tensor comes: who only describes what shelves are needs none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rollpacker.protocols.tensors import RunningChecksum

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from rollpacker.transfer.board import BucketNote
    from rollpacker.transfer.buckets import Piece, TensorSpec


def checksum_of_bucket(note: BucketNote, data: torch.Tensor) -> str:
    """What a bucket that is described so holds; `data` is flat, of uint8."""
    checksum = RunningChecksum()
    for piece in note.pieces:
        spec = piece.tensor
        checksum.add_piece(spec.name, spec.dtype, spec.shape, piece.begin, _part(data, piece))
    return checksum.digest()


class Assembly:
    """Gives each tensor once it is whole. One that lies in one bucket is not copied."""

    def __init__(self) -> None:
        self._unfinished: dict[str, torch.Tensor] = {}
        """Large tensors of which pieces have come, in any order; flat."""
        self._num_missing: dict[str, int] = {}
        """Bytes of each of them."""

    def add(self, note: BucketNote, data: torch.Tensor) -> Sequence[tuple[str, torch.Tensor]]:
        """Take the next bucket; gives the tensors that it completes."""
        return [whole for piece in note.pieces if (whole := self._whole(piece, _part(data, piece))) is not None]

    def _whole(self, piece: Piece, data: torch.Tensor) -> tuple[str, torch.Tensor] | None:
        spec = piece.tensor
        if piece.num_bytes == spec.num_bytes:
            return spec.name, _shaped(data, spec)
        if spec.name not in self._unfinished:
            import torch

            self._unfinished[spec.name] = torch.empty(spec.num_bytes, dtype=torch.uint8, device=data.device)
            self._num_missing[spec.name] = spec.num_bytes
        self._unfinished[spec.name][piece.begin : piece.begin + piece.num_bytes].copy_(data)
        self._num_missing[spec.name] -= piece.num_bytes
        if self._num_missing[spec.name]:
            return None
        del self._num_missing[spec.name]
        return spec.name, _shaped(self._unfinished.pop(spec.name), spec)


def _part(data: torch.Tensor, piece: Piece) -> torch.Tensor:
    return data[piece.offset : piece.offset + piece.num_bytes]


def _shaped(data: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    import torch

    dtype: torch.dtype = getattr(torch, spec.dtype)
    return data.view(dtype).view(spec.shape)
