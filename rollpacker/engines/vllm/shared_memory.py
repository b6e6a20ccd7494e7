"""Buckets in memory that an engine's process shares with vLLM's workers on its node (`rollpacker.transfer.memory`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rollpacker.protocols.tensors import dtype_name
from rollpacker.transfer.memory import HostBuffer, OpenedHostBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


class SharedBuffer:
    """The sender's end: memory for one bucket, overwritten by the next one."""

    def __init__(self, num_bytes: int) -> None:
        self._buffer = HostBuffer(num_bytes)

    def handle(self) -> str:
        """What the workers' `SharedBuckets` take."""
        return self._buffer.handle()

    def write(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> dict[str, Any]:
        """Copy tensors one behind the other, and describe them to the workers."""
        described = []
        offset = 0
        for name, tensor in tensors:
            num_bytes = tensor.numel() * tensor.element_size()
            flat = tensor.detach().contiguous().view(-1).view(torch.uint8)
            self._buffer.data[offset : offset + num_bytes].copy_(flat)
            described.append([name, dtype_name(tensor.dtype), list(tensor.shape), offset])
            offset += num_bytes
        return {"tensors": described}

    def close(self) -> None:
        """Free the memory, once the workers have closed their ends."""
        self._buffer.close()


class SharedBuckets:
    """The workers' end; each worker reads all of it."""

    def __init__(self, handle: str, device: torch.device) -> None:
        self._device = device
        self._buffer = OpenedHostBuffer(handle)

    def receive(self, bucket: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a bucket, on the device. They are the receiver's: vLLM holds them for whole layers."""
        for name, dtype_of_tensor, shape, offset in bucket["tensors"]:
            dtype = getattr(torch, dtype_of_tensor)
            num_bytes = torch.Size(shape).numel() * dtype.itemsize
            shared = self._buffer.data[offset : offset + num_bytes]
            # a copy also where both are on the CPU: the next bucket comes to the same place
            yield name, shared.to(self._device, copy=True).view(dtype).view(shape)

    def close(self) -> None:
        self._buffer.close()
