"""Where a streamed model computes: on a GPU, with copies on a stream of their own, or on the CPU, with plain ones.

Everything that is particular to a GPU is in `CudaDevice`. A mark is a point in the order of compute: what was computed
before it is done when it is reached. A copy begins after a mark, and compute waits for a copy; nothing else orders the
two streams, and nothing here waits on the host but `synchronize`.
"""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from rollpacker.core.errors import EngineFailed

if TYPE_CHECKING:
    from torch import Tensor

Mark = Any
"""A point in the order of compute; read by the device that made it."""

Copy = Any
"""A copy that was ordered; likewise."""


class Device(Protocol):
    """A device's memory and its two streams. It belongs to the thread that computes."""

    place: torch.device
    """Where the tensors lie."""

    def host_buffer(self, num_bytes: int) -> Tensor:
        """Host memory that copies can be made from, as bytes."""

    def buffer(self, num_bytes: int) -> Tensor:
        """Device memory, as bytes. It may be freed only when compute has waited for the last copy into it."""

    def copy(self, source: Tensor, target: Tensor, after: Mark) -> Copy:
        """Order a copy from a host buffer, behind all earlier ones, that begins when compute has come to a mark."""

    def hold(self, source: Tensor, after: Mark) -> tuple[Tensor, Copy]:
        """Device memory that will hold a host buffer's bytes for good, and their copy, ordered as `copy` does."""

    def wait(self, copy: Copy) -> None:
        """Let compute go on only when a copy has ended."""

    def mark(self) -> Mark: ...

    def seconds(self, begin: Mark, end: Mark) -> float:
        """From one mark to a later one, both of them reached."""

    def copied(self, copy: Copy) -> tuple[int, float]:
        """How many bytes a copy that has ended moved, and in how many seconds."""

    def synchronize(self) -> None:
        """Let the host wait for everything."""

    def release_cache(self) -> None:
        """Give freed memory back to other processes."""

    def free_bytes(self) -> int | None:
        """Device memory that buffers can still take; None where they take none, for host memory is device memory."""


def choose_device(memory_share: float) -> Device:
    """The GPU that this process sees, of whose memory it may take a share, else the CPU, of which it takes any."""
    return CudaDevice(memory_share) if torch.cuda.is_available() else CpuDevice()


@dataclass(slots=True, kw_only=True, eq=False)
class _HostCopy:
    source: Tensor
    target: Tensor
    seconds: float = 0.0
    is_done: bool = False


class CpuDevice:
    """The CPU: a copy is made when compute waits for it."""

    def __init__(self) -> None:
        self.place = torch.device("cpu")

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def copy(self, source: Tensor, target: Tensor, after: Mark) -> _HostCopy:  # noqa: ARG002  # all before it is done
        return _HostCopy(source=source, target=target)

    def hold(self, source: Tensor, after: Mark) -> tuple[Tensor, _HostCopy]:  # noqa: ARG002  # likewise
        """The host buffer itself: what stays need not lie in the same memory twice."""
        return source, _HostCopy(source=source[:0], target=source[:0])

    def wait(self, copy: _HostCopy) -> None:
        if not copy.is_done:
            begun_at = time.perf_counter()
            copy.target.copy_(copy.source)
            copy.seconds = time.perf_counter() - begun_at
            copy.is_done = True

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, begin: float, end: float) -> float:
        return end - begin

    def copied(self, copy: _HostCopy) -> tuple[int, float]:
        return copy.source.numel(), copy.seconds

    def synchronize(self) -> None:
        """Nothing runs behind the host's back."""

    def release_cache(self) -> None:
        """The C library does it."""

    def free_bytes(self) -> None:
        return None


_PORTABLE = 1
"""cudaHostRegisterPortable: page-locked for every context."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _CudaCopy:
    num_bytes: int
    begun: torch.cuda.Event
    ended: torch.cuda.Event


class CudaDevice:
    """The first GPU that this process sees.

    Args:
        memory_share: Of its memory, that torch in this process may take at most; the rest is others'.
    """

    def __init__(self, memory_share: float) -> None:
        self.place = torch.device("cuda", 0)
        torch.cuda.set_per_process_memory_fraction(memory_share, self.place)
        self._max_bytes = int(memory_share * torch.cuda.get_device_properties(self.place).total_memory)
        self._copies = torch.cuda.Stream(self.place)  # type: ignore[no-untyped-call]  # torch's own omission

    def host_buffer(self, num_bytes: int) -> Tensor:
        # torch's own pinned memory comes in powers of two, up to twice as large as a layer
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        cuda = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # torch's own omission
        code = int(cuda.cudaHostRegister(buffer.data_ptr(), num_bytes, _PORTABLE))
        if code != 0:
            raise EngineFailed(
                f"{num_bytes / 1e9:.2f} GB of host memory could not be page-locked: CUDA error {code}.",
                "A streamed judge lies in page-locked host memory, all of it.",
                "Give the job more memory, or choose a smaller judge or another reward.judge.engine.",
            )
        # not at exit, where CUDA may have ended before
        weakref.finalize(buffer, cuda.cudaHostUnregister, buffer.data_ptr()).atexit = False
        return buffer

    def buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self.place)

    def copy(self, source: Tensor, target: Tensor, after: torch.cuda.Event) -> _CudaCopy:
        begun, ended = _event(), _event()
        with torch.cuda.stream(self._copies):
            self._copies.wait_event(after)
            begun.record(self._copies)
            target.copy_(source, non_blocking=True)
            ended.record(self._copies)
        return _CudaCopy(num_bytes=source.numel(), begun=begun, ended=ended)

    def hold(self, source: Tensor, after: torch.cuda.Event) -> tuple[Tensor, _CudaCopy]:
        buffer = self.buffer(source.numel())
        return buffer, self.copy(source, buffer, after)

    def wait(self, copy: _CudaCopy) -> None:
        torch.cuda.current_stream(self.place).wait_event(copy.ended)

    def mark(self) -> torch.cuda.Event:
        mark = _event()
        mark.record(torch.cuda.current_stream(self.place))
        return mark

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return float(begin.elapsed_time(end)) / 1e3

    def copied(self, copy: _CudaCopy) -> tuple[int, float]:
        return copy.num_bytes, self.seconds(copy.begun, copy.ended)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.place)

    def release_cache(self) -> None:
        torch.cuda.empty_cache()

    def free_bytes(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.place)
        taken = torch.cuda.memory_allocated(self.place)
        cached = torch.cuda.memory_reserved(self.place) - taken
        return int(min(free + cached, self._max_bytes - taken))


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own omission
