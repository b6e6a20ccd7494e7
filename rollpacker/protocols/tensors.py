"""A model's tensors under their names, tied ones once, and the checksum over what they hold.

Trainer and engine both call this module, so that the two ends of a weight transfer agree on names and on the checksum:
a sum modulo 2^64 with one term for each tensor, so that it can be computed where the tensors are, a piece at a time and
in any order, and the buckets in which they travel cannot change it.

    checksum = sum over tensors of key(name, dtype, shape) * (1 + sum over words of weight(i) * word(i))

A word is 8 bytes, the last one filled up with zeros. Every factor but the words is odd, so that a change of one word
always shows; the weights differ, so that words in other places show.

Code that has a tensor has torch: it is imported where it is used, and importing this module stays cheap.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

WORD_BYTES = 8

ROW_WORDS = 1 << 15
"""A weight is the product of one for the word's row and one for its column: two short tables instead of a long one."""

PIECE_BYTES = ROW_WORDS * WORD_BYTES
"""Pieces of a tensor begin at multiples of it."""

_ROWS_PER_PASS = 1 << 8
"""Rows that an accelerator multiplies at once: 64 MiB of scratch memory."""

_ROW_FACTOR = 0x9E3779B97F4A7C15
_COLUMN_FACTOR = 0xBF58476D1CE4E5B9
"""Of SplitMix64 (Steele, Lea, Flood, 2014): odd, with bits all over."""

_MODULUS = 1 << 64


def named_tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Parameters and persistent buffers under the names of the transformers model, ascending, without copying.

    Those of a dense model are as in its files. Experts are fused in memory and not in files, under other names.

    Tensors that share memory appear once. Of their names the one counts that Hugging Face stores in a file (an
    output layer tied to the embedding goes by the embedding's name), then the first in sorted order.
    """
    tied = getattr(model, "all_tied_weights_keys", {})
    state = model.state_dict()
    chosen: dict[str, torch.Tensor] = {}
    seen: set[tuple[int, tuple[int, ...], tuple[int, ...]]] = set()
    for name in sorted(state, key=lambda name: (name in tied, name)):
        tensor = state[name]
        place = (tensor.data_ptr(), tuple(tensor.shape), tuple(tensor.stride()))
        if tensor.numel() and place in seen:
            continue
        seen.add(place)
        chosen[name] = tensor
    return dict(sorted(chosen.items()))


def num_bytes_of_tensors(tensors: Mapping[str, torch.Tensor]) -> int:
    """Bytes that the tensors hold."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether no number in these floating-point tensors is infinite or NaN. Reads each of them once."""
    import torch

    largest = torch.nn.utils.get_total_norm([tensor for tensor in tensors if tensor.numel()], norm_type=math.inf)
    return bool(largest.isfinite())


def dtype_name(dtype: torch.dtype) -> str:
    """As `getattr(torch, name)` takes it: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def combined_checksum(parts: Iterable[str]) -> str:
    """The checksum of tensors whose pieces were counted in several parts, each piece in one of them."""
    return f"{sum(int(part, 16) for part in parts) % _MODULUS:016x}"


def checksum_of_tensors(tensors: Mapping[str, torch.Tensor]) -> str:
    """`RunningChecksum` over tensors that are all there, whatever their device and layout."""
    running = RunningChecksum()
    for name, tensor in tensors.items():
        running.add(name, tensor)
    return running.digest()


class RunningChecksum:
    """The checksum of tensors as they come, in any order: 16 hexadecimal digits.

    It detects a wrong, stale or torn transfer, not an attacker. It is computed on the tensors' device, which is waited
    for only by `digest`.
    """

    def __init__(self) -> None:
        self._sum = 0
        """Of the tensors' keys."""
        self._sums: dict[torch.device, torch.Tensor] = {}
        """Of the tensors' words, by where they are; int64, which wraps as arithmetic modulo 2^64 does."""
        self._column_weights: dict[torch.device, torch.Tensor] = {}

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Count a whole tensor."""
        import torch

        flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
        self.add_piece(name, dtype_name(tensor.dtype), tensor.shape, 0, flat)

    def add_piece(self, name: str, dtype: str, shape: Sequence[int], begin: int, piece: torch.Tensor) -> None:
        """Count some bytes of a tensor, a flat one of uint8.

        Args:
            name: Of the tensor.
            dtype: Of the tensor, by name.
            shape: Of the tensor.
            begin: Where the piece begins within it, bytes; a multiple of `PIECE_BYTES`.
            piece: A multiple of `PIECE_BYTES` long unless it is the tensor's last one.
        """
        assert begin % PIECE_BYTES == 0
        key = _key(f"{name} {dtype} {tuple(shape)}")
        if begin == 0:
            self._sum += key
        if piece.numel():
            value = self._weighted_sum(piece, begin // PIECE_BYTES) * _signed(key)
            before = self._sums.get(piece.device)
            self._sums[piece.device] = value if before is None else before + value

    def digest(self) -> str:
        return f"{(self._sum + sum(int(value) for value in self._sums.values())) % _MODULUS:016x}"

    def _weighted_sum(self, piece: torch.Tensor, first_row: int) -> torch.Tensor:
        import torch

        if piece.data_ptr() % WORD_BYTES or piece.storage_offset() % WORD_BYTES:
            piece = piece.clone()
        columns = self._columns(piece.device)
        num_whole = piece.numel() // PIECE_BYTES
        total = torch.zeros((), dtype=torch.int64, device=piece.device)
        if num_whole:
            words_by_row = piece[: num_whole * PIECE_BYTES].view(torch.int64).view(num_whole, ROW_WORDS)
            rows = torch.arange(first_row, first_row + num_whole, dtype=torch.int64, device=piece.device)
            total = total + (_row_sums(words_by_row, columns) * _odd(rows, _ROW_FACTOR)).sum()
        rest = piece[num_whole * PIECE_BYTES :]
        if rest.numel():
            padding = -rest.numel() % WORD_BYTES
            words = torch.cat([rest, rest.new_zeros(padding)]).view(torch.int64) if padding else rest.view(torch.int64)
            row = torch.tensor(first_row + num_whole, dtype=torch.int64, device=piece.device)
            total = total + (words * columns[: len(words)]).sum() * _odd(row, _ROW_FACTOR)
        return total

    def _columns(self, device: torch.device) -> torch.Tensor:
        import torch

        if device not in self._column_weights:
            columns = torch.arange(ROW_WORDS, dtype=torch.int64, device=device)
            self._column_weights[device] = _odd(columns, _COLUMN_FACTOR)
        return self._column_weights[device]


def _row_sums(words_by_row: torch.Tensor, column_weights: torch.Tensor) -> torch.Tensor:
    import torch

    if words_by_row.device.type == "cpu":
        return torch.mv(words_by_row, column_weights)
    # accelerators multiply no integer matrices
    return torch.cat(
        [(some_rows * column_weights).sum(dim=1) for some_rows in torch.split(words_by_row, _ROWS_PER_PASS)]
    )


def _odd(indices: torch.Tensor, factor: int) -> torch.Tensor:
    """An odd weight for each index, unlike its neighbours'."""
    return (indices * _signed(factor)) | 1


def _key(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") | 1


def _signed(number: int) -> int:
    """The int64 that has the bits of a number below 2^64."""
    return number - _MODULUS if number >= _MODULUS // 2 else number
