"""Moves the memory under tensors to the host and back, while every tensor stays the object that it is.

Megatron-core keeps parameters and gradients as views of a few large buffers, and its optimizer holds views of those;
FSDP2 keeps gradients that it has not reduced where only it finds them. Moving tensor by tensor would tear them apart.
What is moved here is the storage below: its bytes are copied to the host, the storage is resized to nothing, and later
filled again; every view of it is whole again, bit for bit.

The host's memory is locked and kept for the next time: of each size, as many buffers as were ever away at once.
"""

from __future__ import annotations

import mmap
from collections import defaultdict
from typing import TYPE_CHECKING

import torch

from rollpacker.transfer.memory import page_lock

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


class HostCopies:
    """The bytes of some storages while they are away; empty while they are in place."""

    def __init__(self) -> None:
        self._away: dict[int, tuple[torch.UntypedStorage, Tensor]] = {}
        """By the address of the storage's record, which stays when its memory goes."""
        self._spare: defaultdict[int, list[Tensor]] = defaultdict(list)
        """Buffers by their size in bytes."""

    @property
    def is_away(self) -> bool:
        return bool(self._away)

    def take(self, tensors: Iterable[Tensor]) -> None:
        """Empty the storages under the tensors, each once. Until `put_back` no tensor may be touched."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.nbytes() == 0:
                continue
            spare = self._spare[storage.nbytes()]
            on_host = spare.pop() if spare else _buffer_for(storage)
            on_host.copy_(_bytes_of(storage))
            self._away[_address(storage)] = storage, on_host
            storage.resize_(0)

    def put_back(self) -> None:
        """Fill the storages again."""
        for storage, on_host in self._away.values():
            storage.resize_(on_host.numel())
            _bytes_of(storage).copy_(on_host)
            self._spare[on_host.numel()].append(on_host)
        self._away.clear()

    def readable(self, tensor: Tensor) -> Tensor:
        """The tensor, or while it is away one in host memory with the same values, to read."""
        place = _address(tensor.untyped_storage())
        if place not in self._away:
            return tensor.detach()
        _, on_host = self._away[place]
        view = torch.empty(0, dtype=tensor.dtype)
        return view.set_(on_host.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _buffer_for(storage: torch.UntypedStorage) -> Tensor:
    # pages of its own: what two buffers share could be locked for one of them only
    buffer = torch.frombuffer(mmap.mmap(-1, storage.nbytes()), dtype=torch.uint8)
    if storage.device.type == "cuda":
        page_lock(buffer)  # until the process ends
    return buffer


def _address(storage: torch.UntypedStorage) -> int:
    # torch has no public name for it, and the address of its memory changes.
    return int(storage._cdata)  # noqa: SLF001


def _bytes_of(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
