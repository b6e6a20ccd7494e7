"""Memory that a bucket lies in, and how another process of the same node opens it.

On a CPU it is an anonymous file (memfd_create(2)): it has no name in any file system, so that nothing is left of it
when its last process is gone, however that one ended, and the size of /dev/shm, which containers keep small, does not
matter. A receiver opens it through the sender's entry in /proc, which the system allows to processes of one user.

On a GPU it is an allocation that CUDA lends to other processes (CUDA IPC). What a receiver has opened is valid until
the sender closes it, so it reports that it is done first. torch frees it when each handle's receiver has let go, which
an engine whose process dies in a transfer never does: both buckets of that transfer stay on the sender's GPU until the
trainer ends. Nobody lets go in its place: a counter that is lowered twice is as large as one that never was, being
unsigned (torch/csrc/CudaIPCTypes.h), and a receiver that failed may have lowered it or be about to.
"""

from __future__ import annotations

import base64
import functools
import json
import mmap
import os
from pathlib import Path
from typing import Protocol

import torch

from rollpacker.transfer.transport_choice import Station


class Buffer(Protocol):
    """The sender's end."""

    data: torch.Tensor
    """The whole of it; uint8, flat."""

    def handle(self) -> str:
        """What one receiver opens it with; each gets its own."""

    def close(self) -> None: ...


class HostBuffer:
    """Memory of the host; page-locked where this process has a GPU, if the system allows it."""

    def __init__(self, num_bytes: int) -> None:
        # not inherited by processes that this one starts: they open it by its path
        self._file = os.memfd_create("rollpacker-weights", os.MFD_CLOEXEC)
        os.ftruncate(self._file, num_bytes)
        self.data = torch.frombuffer(mmap.mmap(self._file, num_bytes), dtype=torch.uint8)  # unmapped with its last view
        self._locked_at = self.data.data_ptr() if page_lock(self.data) else None

    def handle(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def close(self) -> None:
        if self._locked_at is not None:
            torch.cuda.cudart().cudaHostUnregister(self._locked_at)  # type: ignore[no-untyped-call]
        self.data = torch.empty(0, dtype=torch.uint8)
        os.close(self._file)


def page_lock(data: torch.Tensor) -> bool:
    """True if that can be done: GPUs copy to and from it several times as fast then.

    torch's own page-locked tensors take up to twice their size: its allocator rounds each up to a power of two.
    """
    if not torch.cuda.is_available():
        return False
    status = torch.cuda.cudart().cudaHostRegister(data.data_ptr(), data.numel(), 0)  # type: ignore[no-untyped-call]
    return int(status) == 0


class CudaBuffer:
    """Memory of the sender's GPU."""

    def __init__(self, num_bytes: int, device: torch.device) -> None:
        self.data = torch.empty(num_bytes, dtype=torch.uint8, device=device)

    def handle(self) -> str:
        from torch.multiprocessing.reductions import reduce_tensor

        _, arguments = reduce_tensor(self.data)  # type: ignore[no-untyped-call]
        # after the tensor's shape and types: device, handle, bytes, offset, requires_grad, and what counts its readers
        _, memory, num_bytes, offset, _, counter, counter_offset, event, needs_event = arguments[6:]
        return json.dumps(
            [_as_text(memory), num_bytes, offset, _as_text(counter), counter_offset, _as_text(event), needs_event]
        )

    def close(self) -> None:
        self.data = torch.empty(0, dtype=torch.uint8)


def open_host_buffer(handle: str) -> torch.Tensor:
    """Open a `HostBuffer`; it is unmapped with the last view."""
    with Path(handle).open("r+b") as file:
        return torch.frombuffer(mmap.mmap(file.fileno(), 0), dtype=torch.uint8)


def open_cuda_buffer(handle: str, device_index: int) -> torch.Tensor:
    """Open a `CudaBuffer` on the GPU of that index; this receiver lets go of it with the last view."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    memory, num_bytes, offset, counter, counter_offset, event, needs_event = json.loads(handle)
    opened: torch.Tensor = rebuild_cuda_tensor(  # type: ignore[no-untyped-call]
        torch.Tensor,
        torch.Size([num_bytes]),
        (1,),
        0,
        torch.UntypedStorage,
        torch.uint8,
        device_index,
        _as_bytes(memory),
        num_bytes,
        offset,
        False,  # requires_grad
        _as_bytes(counter),
        counter_offset,
        _as_bytes(event),
        needs_event,
    )
    return opened


def accelerator_here() -> torch.device:
    """This process's GPU, or the CPU where it has none."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def station_here(device: torch.device) -> Station:
    """Where this process works."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    processes = Path("/proc/self/ns/pid").stat().st_ino
    gpus = _gpu_uuids() if torch.cuda.is_available() else ()
    gpu = gpus[device.index or 0] if device.type == "cuda" else None
    return Station(node=f"{boot}/{processes}", gpu=gpu, visible_gpus=gpus)


@functools.cache
def _gpu_uuids() -> tuple[str, ...]:
    return tuple(str(torch.cuda.get_device_properties(index).uuid) for index in range(torch.cuda.device_count()))


def wait_for_device(device: torch.device) -> None:
    """Return when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _as_bytes(text: str) -> bytes:
    return base64.b64decode(text)
