"""A device that only writes down what it is ordered, and plays it back in any order that its two streams allow.

Compute and copies each run in their own order; only a copy's mark and compute's waits tie them together. Memory that is
freed is at once given to compute, which scribbles on it, as a stream-ordered allocator may.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    import random

    from torch import Tensor

SCRIBBLE = "scribble"


@dataclass(slots=True, eq=False)
class Operation:
    after: Operation | None
    """Of the other stream; it has ended before this one begins."""
    block: int | None = None
    layer: int | str | None = None
    """What a copy writes, or what compute must find; None only orders."""
    is_write: bool = False


@dataclass(slots=True)
class RecordingDevice:
    place: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compute: list[Operation] = field(default_factory=list)
    copies: list[Operation] = field(default_factory=list)
    ordered: list[Operation] = field(default_factory=list)
    """Both, as the host ordered them."""
    num_blocks: int = 0
    free: list[int] = field(default_factory=list)
    blocks: dict[int, int] = field(default_factory=dict)
    """By address."""

    # -- what a device is --

    def host_buffer(self, num_bytes: int) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)

    def buffer(self, num_bytes: int) -> Tensor:
        tensor = torch.empty(num_bytes, dtype=torch.uint8)
        if not self.free:
            self.free.append(self.num_blocks)
            self.num_blocks += 1
        block = self.free.pop()
        self.blocks[tensor.data_ptr()] = block
        weakref.finalize(tensor, self._freed, tensor.data_ptr(), block)
        return tensor

    def copy(self, source: Tensor, target: Tensor, after: Operation) -> Operation:
        block = self.blocks[target.data_ptr()]
        return self._order(self.copies, Operation(after=after, block=block, layer=int(source[0]), is_write=True))

    def hold(self, source: Tensor, after: Operation) -> tuple[Tensor, Operation]:
        buffer = self.buffer(source.numel())
        return buffer, self.copy(source, buffer, after)

    def wait(self, copy: Operation) -> None:
        self._order(self.compute, Operation(after=copy))

    def mark(self) -> Operation:
        return self._order(self.compute, Operation(after=None))

    def seconds(self, _begin: Operation, _end: Operation) -> float:
        return 0.0

    def copied(self, _copy: Operation) -> tuple[int, float]:
        return 1, 0.0

    def synchronize(self) -> None: ...

    def release_cache(self) -> None: ...

    def free_bytes(self) -> int | None:
        return None

    # -- what a test does with it --

    def read(self, buffer: Tensor, layer: int) -> None:
        """Compute with a buffer that must hold a layer."""
        self._order(self.compute, Operation(after=None, block=self.blocks[buffer.data_ptr()], layer=layer))

    def play(self, numbers: random.Random) -> None:
        """Carry everything out, each stream in its order and the two in any; fails where compute finds other bytes."""
        held: dict[int | None, int | str | None] = {}
        writing: dict[int | None, Operation] = {}
        ended: set[Operation] = set()
        streams = [list(reversed(self.compute)), list(reversed(self.copies))]
        begun: list[Operation | None] = [None, None]
        while any(streams):
            ready = [
                number
                for number, stream in enumerate(streams)
                if stream and (begun[number] or stream[-1].after is None or stream[-1].after in ended)
            ]
            assert ready, "the streams wait for each other"
            number = numbers.choice(ready)
            operation = streams[number][-1]
            is_beginning = begun[number] is None
            if operation.is_write:
                if is_beginning:
                    assert operation.block not in writing, f"two writes to {operation.block} at a time"
                    writing[operation.block] = operation
                    held[operation.block] = "torn"
                else:
                    assert held[operation.block] == "torn", f"{operation.block} was written twice at a time"
                    del writing[operation.block]
                    held[operation.block] = operation.layer
            elif operation.layer is not None:
                assert held[operation.block] == operation.layer, f"layer {operation.layer} computed with other bytes"
            begun[number] = operation if is_beginning else None
            if not is_beginning:
                ended.add(operation)
                streams[number].pop()

    def waited(self, copy_s: float, compute_s: float, num_reads: int) -> float:
        """For how long the last so many layers wait, when everything runs as early as it can."""
        ends: dict[Operation, float] = {}
        now = {id(self.compute): 0.0, id(self.copies): 0.0}
        copies = set(self.copies)
        waits: list[float] = []
        gap = 0.0
        for operation in self.ordered:
            stream = id(self.copies if operation in copies else self.compute)
            begin = max(now[stream], ends[operation.after] if operation.after else 0.0)
            if operation not in copies:
                gap += begin - now[stream]
                if operation.layer is not None:
                    waits.append(gap)
                    gap = 0.0
            took = copy_s if operation in copies else compute_s if operation.layer is not None else 0.0
            ends[operation] = now[stream] = begin + took
        return sum(waits[-num_reads:])

    def _order(self, stream: list[Operation], operation: Operation) -> Operation:
        stream.append(operation)
        self.ordered.append(operation)
        return operation

    def _freed(self, address: int, block: int) -> None:
        del self.blocks[address]
        self.free.append(block)
        self._order(self.compute, Operation(after=None, block=block, layer=SCRIBBLE, is_write=True))
