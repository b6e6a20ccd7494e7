"""Where each layer's weights lie on the device: resident layers for good, the others in a slot while they compute.

    a slot:   free --copy of the next streamed layer--> filled --enter--> in use --leave--> free
                     begins after the mark of `leave`             compute waits for the copy

Streamed layers pass through the slots in a ring: when the last one has been copied, the first one is next, for the pass
to come. Nothing here waits on the host: the device's two streams are ordered by marks and copies alone.

Invariants: a buffer that compute reads holds that layer's weights, whole (compute waits for the copy); no copy into a
slot begins before compute has left it; no buffer is freed while a copy into it may be under way.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rollpacker.core.errors import InvariantViolated

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import Tensor

    from rollpacker.engines.streamed.devices import Copy, Device, Mark


@dataclass(slots=True, kw_only=True, eq=False)
class _Home:
    """A device buffer and the layer in it."""

    buffer: Tensor
    layer: int
    copy: Copy
    """That brought the layer."""
    is_awaited: bool = False
    """Compute waits for the copy, or has waited."""


class DeviceLayers:
    """The device's copies of layers that lie in host buffers.

    Args:
        device: Makes buffers and copies.
        sources: Each layer's host buffer.
        num_slots: For streamed layers.
    """

    def __init__(self, device: Device, sources: Sequence[Tensor], num_slots: int) -> None:
        self._device = device
        self._sources = sources
        self._slot_bytes = max(source.numel() for source in sources)
        self._num_slots = num_slots
        self._resident: dict[int, _Home] = {}
        self._slots: deque[_Home] = deque()
        """In the order in which their layers are needed."""
        self._in_use: _Home | None = None
        self._order: tuple[int, ...] = ()
        """The streamed layers."""
        self._next = 0
        """Place in the order of the layer that is copied next."""

    @property
    def num_resident(self) -> int:
        return len(self._resident)

    @property
    def num_bytes(self) -> int:
        """Device memory held."""
        return sum(home.buffer.numel() for home in (*self._resident.values(), *self._slots))

    def place(self, streamed: Sequence[int]) -> None:
        """Let these layers stream from the next pass on, and all others be resident; no pass may be under way.

        Ascending, and either none or more than there are slots. What lies where it belongs stays there.
        """
        order = tuple(streamed)
        if 0 < len(order) <= self._num_slots:
            raise InvariantViolated(f"{len(order)} layers are to stream through {self._num_slots} slots.")
        slots = self._free_slots()
        for layer in sorted(self._resident.keys() & set(order)):
            self._free(self._resident.pop(layer))
        if not order:
            while slots:
                self._free(slots.pop())
        first = order[: self._num_slots]
        kept = {home.layer: home for home in slots if home.layer in first}
        buffers = [home.buffer for home in slots if home is not kept.get(home.layer)]
        now = self._device.mark()
        # copies are carried out in the order in which they are ordered, so the layer that is needed first comes first
        is_streamed = frozenset(order)
        for layer in range(len(self._sources)):
            if layer in first:
                if layer not in kept:
                    buffer = buffers.pop() if buffers else self._device.buffer(self._slot_bytes)
                    kept[layer] = self._fill(buffer, layer, now)
            elif layer not in is_streamed and layer not in self._resident:
                buffer, copy = self._device.hold(self._sources[layer], now)
                self._resident[layer] = _Home(buffer=buffer, layer=layer, copy=copy)
        self._order, self._next = order, len(first) % max(len(order), 1)
        self._slots = deque(kept[layer] for layer in first)

    def enter(self, layer: int) -> tuple[Tensor, Copy | None]:
        """Let compute wait until a layer's weights are there.

        Returns:
            The buffer that holds them until `leave`, and the copy that brought them if this is its first use.
        """
        home = self._resident.get(layer)
        if home is None:
            if self._in_use is not None or not self._slots or self._slots[0].layer != layer:
                raise InvariantViolated(f"Layer {layer} computes, and the slots hold {self._held()}.")
            home = self._in_use = self._slots[0]
        if home.is_awaited:
            return home.buffer, None
        self._await(home)
        return home.buffer, home.copy

    def leave(self, layer: int) -> None:
        """Let the slot that a layer computed in, if it did, take the next one."""
        if layer in self._resident:
            return
        if self._in_use is None or self._in_use.layer != layer:
            raise InvariantViolated(f"Layer {layer} has computed, and the slots hold {self._held()}.")
        buffer = self._slots.popleft().buffer
        self._in_use = None
        following = self._order[self._next]
        self._next = (self._next + 1) % len(self._order)
        self._slots.append(self._fill(buffer, following, self._device.mark()))

    def release(self) -> None:
        """Free all device memory; `place` takes it again."""
        for home in self._free_slots():
            self._free(home)
        for home in self._resident.values():
            self._free(home)
        self._resident, self._order, self._next = {}, (), 0

    def _free_slots(self) -> list[_Home]:
        """Take the slots out of use, also those of a pass that broke off."""
        self._in_use = None
        slots, self._slots = list(self._slots), deque()
        return slots

    def _fill(self, buffer: Tensor, layer: int, after: Mark) -> _Home:
        source = self._sources[layer]
        copy = self._device.copy(source, buffer[: source.numel()], after)
        return _Home(buffer=buffer, layer=layer, copy=copy)

    def _await(self, home: _Home) -> None:
        self._device.wait(home.copy)
        home.is_awaited = True

    def _free(self, home: _Home) -> None:
        # the allocator may give the memory to compute at once, which knows nothing of the other stream
        if not home.is_awaited:
            self._await(home)

    def _held(self) -> Collection[int]:
        return [home.layer for home in self._slots]
